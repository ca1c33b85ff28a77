"""``ssl-vision export``: write a backbone for other libraries, with a model card, or publish it."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.errors import InputError
from ssl_vision.export.card import card, evaluation_rows, loading_code, write_repository
from ssl_vision.export.formats import FORMATS, checked_export, versions
from ssl_vision.hub import SCHEME, upload
from ssl_vision.pretrained.backbones import pretrained
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

    def add(name: str, kind: Any, default: Any, text: str) -> None:
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)

    parser.add_argument("checkpoint", nargs="?", help="Checkpoint file, or run directory for its last one.")
    add_encoder_options(parser, encoder="Export this encoder instead of a checkpoint")
    add("format", FormatName, "safetensors", "Output format; safetensors is for ssl_vision.load_encoder.")
    text = "Output file (default: in the run directory); required by --encoder."
    add("output", str | None, None, text)
    text = "Repository OWNER/NAME on the Hugging Face Hub to upload the encoder to, created if necessary."
    add("push", str | None, None, text)
    text = "Create the repository of --push as a private one (default: as the owner's settings say)."
    add("private", bool | None, None, text)
    add("license", str | None, None, "Licence in the card of --push, such as apache-2.0.")
    add_allow_class(parser)
    allow_class, options = allowed_classes(args), parser.parse_args(with_classes(args))
    if options.push is not None and options.format != "safetensors":
        raise InputError("--push uploads the safetensors format only: remove --format")
    if options.push is None and (options.private is not None or options.license is not None):
        raise InputError("--private and --license require --push")
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
        given, rows = pretrained(source), evaluation_rows(source)
    else:
        raise InputError("give a checkpoint or a run directory first, or --encoder with --weights")
    with atomic_write(file) as partial:
        form.write(partial, given)
        checked = checked_export(partial, form, given)
    snippet, card_file = form.snippet(file.name, given), file.with_name(f"{file.name}.md")
    text = card(given, rows, source=source, snippet=snippet, checked=checked, versions=versions(form))
    write_text(card_file, text)
    images, message = None, f"Upload {type(given.backbone).__name__}"
    if isinstance(source, str):
        print(source)
    else:
        checkpoint, files = source.checkpoint, [file, card_file]
        if source.owned and source.config.get("wandb_artifacts", "none") != "none":
            log_later(
                source.folder,
                source.config,
                lambda wandb_run: log_files(wandb_run, "encoder", files, checkpoint=checkpoint),
                command="export",
            )
        images, message = checkpoint.images, f"{message} of epoch {checkpoint.epoch}"
    print(f"written to {file} ({file.stat().st_size / 1e6:.1f} MB), its card to {card_file}\n{checked}")
    if options.push is not None:
        code = loading_code(options.push, given, form.snippet(f"{SCHEME}{options.push}", given))
        with TemporaryDirectory() as folder:
            write_repository(
                Path(folder), file, text.replace(snippet, code),
                name=options.push, given=given, rows=rows, images=images, license=options.license,
            )  # fmt: skip
            url = upload(Path(folder), options.push, private=options.private, message=message)
        print(f"uploaded to {url}")


def _file_name(name: str) -> str:
    return f"backbone{'' if name in ('safetensors', 'onnx') else '-' + name}{FORMATS[name].suffix}"
