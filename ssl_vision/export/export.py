"""``ssl-vision export``: a checkpoint's backbone as a file for other libraries, with a model card."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ssl_vision._version import __version__
from ssl_vision.cli.classes import add_allow_class, allowed_classes
from ssl_vision.cli.parser import OneLineErrors
from ssl_vision.errors import InputError
from ssl_vision.export.backbones import Pretrained, pretrained
from ssl_vision.export.card import card, evaluation_rows
from ssl_vision.export.formats import FORMATS, Format, difference
from ssl_vision.optional import installed
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.folder import RunFolder

FormatName = Literal["safetensors", "torchvision", "timm", "onnx"]


def run(args: Sequence[str]) -> None:
    """Writes the backbone of a checkpoint for use elsewhere, and a model card beside it.

    The file is loaded in the library that it is for, where that is installed, and is kept only if it gives
    the same features there.

    Raises:
        InputError: a checkpoint that cannot be used, or a form that it cannot have.
    """
    parser = OneLineErrors(prog="ssl-vision export", description=run.__doc__)
    parser.add_argument("checkpoint", type=str, help="A checkpoint file, or a run folder for its last one.")
    parser.add_argument(
        "--format",
        type=FormatName,
        default="safetensors",
        help="safetensors: for ssl_vision.load_backbone.",
    )
    parser.add_argument(
        "--output", type=str | None, default=None, help="The file to write; else in the run folder."
    )
    add_allow_class(parser)
    allowed, options = allowed_classes(args), parser.parse_args(list(args))
    checkpoint = read_checkpoint(options.checkpoint)
    _, given = pretrained(checkpoint, allowed=allowed)
    home, form = _home(checkpoint), FORMATS[options.format]
    file = Path(options.output) if options.output else home.path / _file_name(options.format)
    if file.suffix != form.suffix:
        raise InputError(f"--output {file} must end with {form.suffix}")
    rows = evaluation_rows(home.evaluation_file, checkpoint.config, epoch=checkpoint.epoch)
    with atomic_write(file) as partial:
        form.write(partial, given)
        checked = _checked(partial, form, given)
    page = file.with_name(file.name + ".md")
    snippet = form.snippet(file.name, given)
    with atomic_write(page) as partial:
        text = card(checkpoint, given, rows, snippet=snippet, checked=checked, versions=_versions(form))
        partial.write_text(text, encoding="utf-8")
    print(f"written to {file} ({file.stat().st_size / 1e6:.1f} MB), its card to {page}\n{checked}")


def _home(checkpoint: Checkpoint) -> RunFolder:
    """The run folder of a checkpoint; its own folder where it lies outside a run."""
    run = RunFolder(checkpoint.path.parent.parent)
    return run if run.config_file.exists() else RunFolder(checkpoint.path.parent)


def _file_name(name: str) -> str:
    return f"backbone{'' if name in ('safetensors', 'onnx') else '-' + name}{FORMATS[name].suffix}"


def _checked(file: Path, form: Format, given: Pretrained) -> str:
    """A sentence about the features of the file in the library that it is for."""
    if not installed(form.library):
        return f"Not checked: {form.library} is not installed."
    found = difference(file, form, given)
    if not found.negligible:
        raise InputError(
            f"{form.library} finds other features in the file than the run's network gives "
            f"(difference {found.largest:.1e}, largest feature {found.feature:.1e}): it is not kept"
        )
    return (
        f"Checked: with {form.library} {_version(form.library)} it gives the pretrained network's features "
        f"of random images (largest difference {found.largest:.1e}, largest feature {found.feature:.3g})."
    )


def _versions(form: Format) -> dict[str, str]:
    libraries = dict.fromkeys(("torch", "torchvision", *([form.library] if installed(form.library) else [])))
    return {"ssl_vision": __version__} | {name: _version(name) for name in libraries}


def _version(library: str) -> str:
    return __version__ if library == "ssl_vision" else version(library)
