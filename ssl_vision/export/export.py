"""``ssl-vision export``: write a backbone for other libraries, with a model card, or publish it."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from jsonargparse import Namespace

from ssl_vision._version import __version__
from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.errors import InputError
from ssl_vision.export.card import card, evaluation_rows, loading_code, write_repository
from ssl_vision.export.formats import FORMATS, Format, difference
from ssl_vision.hub import SCHEME, check_upload, upload
from ssl_vision.optional import installed
from ssl_vision.pretrained.backbones import Pretrained, pretrained
from ssl_vision.pretrained.encoder_options import add_encoder_options, described_encoder, with_classes
from ssl_vision.pretrained.opened_run import OpenedRun, open_run
from ssl_vision.runs.files import atomic_write, write_text
from ssl_vision.tracking.wandb import log_files, log_later

FormatName = Literal["safetensors", "torchvision", "timm", "onnx"]


def run(args: Sequence[str]) -> None:
    """Write the backbone of a checkpoint, or weights of other code, for another library, with a model card.

    If that library is installed, it loads the file, which is kept only if the features are the same.
    --push OWNER/NAME also uploads weights, config.json and card to the Hugging Face Hub, from which
    ssl_vision.load_encoder("hf://OWNER/NAME") loads the encoder.

    Raises:
        InputError: The checkpoint or the weights cannot be used, the format does not support the encoder, or
            the upload fails; the local files are kept in that case.
    """
    parser = ArgumentParser(prog="ssl-vision export", description=run.__doc__)
    parser.add_argument("checkpoint", nargs="?", help="Checkpoint file, or run directory for its last one.")
    add_encoder_options(parser, encoder="Export this encoder instead of a checkpoint")
    parser.add_argument(
        "--format", type=FormatName, default="safetensors",
        help="Output format; safetensors is for ssl_vision.load_encoder.",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=str | None, default=None,
        help="Output file (default: in the run directory); required by --encoder.",
    )  # fmt: skip
    parser.add_argument(
        "--push", type=str | None, default=None,
        help="Repository OWNER/NAME on the Hugging Face Hub to upload the encoder to, created if necessary.",
    )  # fmt: skip
    parser.add_argument(
        "--private", type=bool | None, default=None,
        help="Create the repository of --push as a private one (default: as the owner's settings say).",
    )  # fmt: skip
    parser.add_argument(
        "--license", type=str | None, default=None, help="Licence in the card of --push, such as apache-2.0."
    )
    add_allow_class(parser)
    allow_class, options = allowed_classes(args), parser.parse_args(with_classes(args))
    _check_push(options)
    form = FORMATS[options.format]
    if options.output is not None and Path(options.output).suffix != form.suffix:
        raise InputError(f"--output {options.output} must end with {form.suffix}")
    source: OpenedRun | str
    if options.encoder is not None:
        if options.checkpoint is not None or options.output is None:
            raise InputError("--encoder requires --output, and replaces the checkpoint")
        file, rows = Path(options.output), list[dict[str, Any]]()
        given, source = described_encoder(parser, options)
    elif options.checkpoint is not None and options.weights is None:
        source = open_run(options.checkpoint, allow_class=allow_class)
        file = Path(options.output or source.folder.path / _file_name(options.format))
        (_, given), rows = pretrained(source), evaluation_rows(source)
    else:
        raise InputError("give a checkpoint or a run directory first, or --encoder with --weights")
    with atomic_write(file) as partial:
        form.write(partial, given)
        checked = _checked(partial, form, given)
    about: dict[str, Any] = {"source": source, "checked": checked, "versions": _versions(form)}
    page = file.with_name(file.name + ".md")
    write_text(page, card(given, rows, snippet=form.snippet(file.name, given), **about))
    if isinstance(source, str):
        print(source)
    else:
        _log(source, [file, page])
    print(f"written to {file} ({file.stat().st_size / 1e6:.1f} MB), its card to {page}\n{checked}")
    if options.push is not None:
        print(f"uploaded to {_push(options, file, given, rows, about)}")


def _log(run: OpenedRun, files: list[Path]) -> None:
    """Add the files to the W&B run if its config asks for it."""
    if run.owned and run.config.get("wandb_artifacts", "none") != "none":

        def log(wandb_run: Any) -> None:
            log_files(wandb_run, "encoder", files, checkpoint=run.checkpoint)

        log_later(run.folder, run.config, log, command="export")


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
    given: Pretrained,
    rows: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
) -> str:
    """Upload an exported file to the Hugging Face Hub, and return the URL of the repository."""
    snippet = FORMATS["safetensors"].snippet(f"{SCHEME}{options.push}", given)
    page = card(given, rows, snippet=loading_code(options.push, given, snippet), **about)
    source, message = about["source"], f"Upload {type(given.backbone).__name__}"
    images = None
    if isinstance(source, OpenedRun):
        images, message = source.checkpoint.images, f"{message} of epoch {source.checkpoint.epoch}"
    with TemporaryDirectory() as folder:
        write_repository(
            Path(folder), file, page,
            name=options.push, given=given, rows=rows, images=images, license=options.license,
        )  # fmt: skip
        return upload(Path(folder), options.push, private=options.private, message=message)


def _file_name(name: str) -> str:
    return f"backbone{'' if name in ('safetensors', 'onnx') else '-' + name}{FORMATS[name].suffix}"


def _checked(file: Path, form: Format, given: Pretrained) -> str:
    """Load the file in its library, compare the features, and describe the result."""
    if not installed(form.library):
        return f"Not checked: {form.library} is not installed."
    gap, largest = difference(file, form, given)
    size = f"largest difference {gap:.1e}, largest feature {largest:.3g}"
    if not gap < 1e-5 * max(1.0, largest):  # the accuracy of float32
        raise InputError(
            f"the features of the file in {form.library} differ from those of the encoder ({size}); "
            "the file was not kept"
        )
    return (
        f"Checked: with {form.library} {_versions(form)[form.library]} it gives the encoder's features of "
        f"random images ({size})."
    )


def _versions(form: Format) -> dict[str, str]:
    """Return the versions of the libraries that wrote and load the file."""
    libraries = {"torch", "torchvision", *([form.library] if installed(form.library) else [])}
    return {"ssl_vision": __version__} | {name: version(name) for name in sorted(libraries - {"ssl_vision"})}
