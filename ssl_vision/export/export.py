"""``ssl-vision export``: write a backbone for other libraries, with a model card, or publish it."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from jsonargparse import Namespace

from ssl_vision._version import __version__
from ssl_vision.cli.classes import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.errors import InputError
from ssl_vision.export.card import card, evaluation_rows
from ssl_vision.export.formats import FORMATS, Format, difference
from ssl_vision.export.repository import loading_code, write_repository
from ssl_vision.hub import SCHEME, check_upload, upload
from ssl_vision.optional import installed
from ssl_vision.pretrained.backbones import Pretrained, pretrained
from ssl_vision.runs.atomic_files import atomic_write, write_text
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint, run_beside
from ssl_vision.runs.folder import owned
from ssl_vision.tracking.artifacts import log_encoder
from ssl_vision.tracking.wandb import opened_mirror

FormatName = Literal["safetensors", "torchvision", "timm", "onnx"]


def run(args: Sequence[str]) -> None:
    """Write the backbone of a checkpoint for another library, with a model card.

    If that library is installed, it loads the file, which is kept only if the features are the same.
    --push OWNER/NAME also uploads weights, config.json and card to the Hugging Face Hub, from which
    ssl_vision.load_encoder("hf://OWNER/NAME") loads the encoder.

    Raises:
        InputError: The checkpoint cannot be used, the format does not support its encoder, or the upload
            fails; the local files are kept in that case.
    """
    parser = ArgumentParser(prog="ssl-vision export", description=run.__doc__)
    parser.add_argument("checkpoint", type=str, help="Checkpoint file, or run directory for its last one.")
    parser.add_argument(
        "--format",
        type=FormatName,
        default="safetensors",
        help="Output format; safetensors is for ssl_vision.load_encoder.",
    )
    parser.add_argument(
        "--output", type=str | None, default=None, help="Output file (default: in the run directory)."
    )
    parser.add_argument(
        "--push",
        type=str | None,
        default=None,
        help="Repository OWNER/NAME on the Hugging Face Hub to upload the encoder to, created if necessary.",
    )
    parser.add_argument(
        "--private",
        type=bool | None,
        default=None,
        help="Create the repository of --push as a private one (default: as the owner's settings say).",
    )
    parser.add_argument(
        "--license", type=str | None, default=None, help="Licence in the card of --push, such as apache-2.0."
    )
    add_allow_class(parser)
    allow_class, options = allowed_classes(args), parser.parse_args(list(args))
    _check_push(options)
    checkpoint = read_checkpoint(options.checkpoint)
    home, form = run_beside(checkpoint), FORMATS[options.format]
    file = Path(options.output) if options.output else home.path / _file_name(options.format)
    if file.suffix != form.suffix:
        raise InputError(f"--output {file} must end with {form.suffix}")
    _, exported = pretrained(checkpoint, allow_class=allow_class)
    rows = evaluation_rows(home.evaluation_file, checkpoint.config, epoch=checkpoint.epoch)
    with atomic_write(file) as partial:
        form.write(partial, exported)
        checked = _checked(partial, form, exported)
    about: dict[str, Any] = {"checked": checked, "versions": _versions(form)}
    page = file.with_name(file.name + ".md")
    write_text(page, card(checkpoint, exported, rows, snippet=form.snippet(file.name, exported), **about))
    if checkpoint.config.get("wandb_artifacts", "none") != "none" and owned(home.path, checkpoint.path):
        with opened_mirror(home, checkpoint.config, command="export") as mirror:
            if mirror is not None:
                log_encoder(mirror, [file, page], checkpoint=checkpoint)
    print(f"written to {file} ({file.stat().st_size / 1e6:.1f} MB), its card to {page}\n{checked}")
    if options.push is not None:
        address = _push(options, file, checkpoint, exported, rows, about)
        print(f"uploaded to {address}")


def _check_push(options: Namespace) -> None:
    """Check the options of an upload before anything is computed.

    Raises:
        InputError: they are not valid, or an upload cannot be attempted.
    """
    if options.push is None:
        for name in ("private", "license"):
            if options[name] is not None:
                raise InputError(f"--{name} is an option of --push OWNER/NAME, which is missing")
        return
    if options.format != "safetensors":
        raise InputError(
            f"--push uploads the safetensors format, not {options.format}: remove --format, "
            f"or export without --push and run 'hf upload {options.push} FILE'"
        )
    check_upload(options.push)


def _push(
    options: Namespace,
    file: Path,
    checkpoint: Checkpoint,
    given: Pretrained,
    rows: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
) -> str:
    """Upload an exported file to the Hugging Face Hub, and return the URL of the repository."""
    snippet = FORMATS["safetensors"].snippet(f"{SCHEME}{options.push}", given)
    snippet = loading_code(options.push, given, snippet)
    page = card(checkpoint, given, rows, snippet=snippet, **about)
    with TemporaryDirectory() as folder:
        write_repository(
            Path(folder), file, page,
            name=options.push, checkpoint=checkpoint, given=given, rows=rows, license=options.license,
        )  # fmt: skip
        message = f"Upload {type(given.backbone).__name__} of epoch {checkpoint.epoch}"
        return upload(Path(folder), options.push, private=options.private, message=message)


def _file_name(name: str) -> str:
    return f"backbone{'' if name in ('safetensors', 'onnx') else '-' + name}{FORMATS[name].suffix}"


def _checked(file: Path, form: Format, given: Pretrained) -> str:
    """Load the file in its library, compare the features, and describe the result."""
    if not installed(form.library):
        return f"Not checked: {form.library} is not installed."
    gap = difference(file, form, given)
    if not gap.negligible:
        raise InputError(
            f"the features of the file in {form.library} differ from those of the run's network "
            f"(difference {gap.largest:.1e}, largest feature {gap.feature:.1e}); the file was not kept"
        )
    return (
        f"Checked: with {form.library} {_version(form.library)} it gives the pretrained network's features "
        f"of random images (largest difference {gap.largest:.1e}, largest feature {gap.feature:.3g})."
    )


def _versions(form: Format) -> dict[str, str]:
    libraries = dict.fromkeys(("torch", "torchvision", *([form.library] if installed(form.library) else [])))
    return {"ssl_vision": __version__} | {name: _version(name) for name in libraries}


def _version(library: str) -> str:
    return __version__ if library == "ssl_vision" else version(library)
