"""Help of ``fit``: the most common options, and the options of one class, without importing torch."""

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ssl_vision.cli.choices import classes_of, default_class, defaults, known_options
from ssl_vision.cli.import_paths import dotted
from ssl_vision.cli.sources import Definition, Option, capitalized, definition
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_yaml
from ssl_vision.runs.settings import named_settings

START = """\
ssl-vision fit pretrains an encoder. Give at least one option:

  ssl-vision fit --config configs/pretrain/digits.yaml     a first run, on handwritten digits
  ssl-vision fit --data CIFAR10 --data.download true       CIFAR-10, with SimCLR and InfoNCE
  ssl-vision fit --data ImageFolder --data.root my_images  your own images, in any folders

Change one thing with an option, such as --model.objective MACL or --trainer.max_epochs 100.
ssl-vision fit --help lists the options; ssl-vision list objectives lists the objectives."""

GROUPS = {
    "run": (
        "config", "name", "runs_dir", "overwrite", "ckpt_path", "initial_checkpoint", "save_every_n_steps",
        "seed_everything",
    ),
    "data": (
        "data", "data.batch_size", "data.val", "data.val_share", "data.download",
    ),
    "views": (
        "data.views.size", "data.views.scale", "data.views.degrees", "data.views.hflip",
        "data.views.brightness", "data.views.contrast", "data.views.saturation", "data.views.hue",
        "data.views.jitter", "data.views.grayscale", "data.views.blur", "data.views.solarize",
        "data.views.compile",
    ),
    "encoder": ("model.encoder", "model.encoder.depth", "model.encoder.width", "model.encoder.stem"),
    "method": (
        "model", "model.hidden_dim", "model.output_dim", "model.head_batch_norm", "model.bn",
        "model.chunk_size", "model.compile_mode",
    ),
    "objective": ("model.objective", "model.objective.temperature", "model.objective.pairs"),
    "optimizer": (
        "model.optimizer.name", "model.optimizer.lr", "model.optimizer.weight_decay",
        "model.optimizer.momentum", "model.optimizer.schedule", "model.optimizer.warmup_epochs",
        "model.optimizer.lr_scaling", "model.optimizer.exclude_bias_and_norm", "model.optimizer.layer_decay",
    ),
    "trainer": (
        "trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "trainer.accelerator",
        "trainer.devices", "trainer.precision", "trainer.accumulate_grad_batches",
        "trainer.gradient_clip_val", "trainer.sync_batchnorm", "trainer.check_val_every_n_epoch",
        "trainer.limit_train_batches", "trainer.callbacks",
    ),
    "logging": (
        "trainer.log_every_n_steps", "trainer.enable_progress_bar", "metrics.k", "gradients", "online_probe",
        "report", "wandb", "wandb_artifacts", "wandb_media",
    ),
}  # fmt: skip
"""Options in the short help, by group."""

TEXTS = {
    "config": "Config file; later files and options take precedence.",
    "ckpt_path": "Checkpoint to continue from, or last: the last one of the run.",
    "seed_everything": "Seed of the initial weights, the batches and the views.",
    "data": "Data set: {classes}, or your own.",
    "data.val": "Validation images: auto, train (held-out), val or test.",
    "model": "Method: {classes}, or your own.",
    "model.encoder": "Encoder: {classes}, or your own module.",
    "model.objective": "Objective; ssl-vision list objectives lists all of them.",
    "model.objective.pairs": "Negatives: both, cross, queue or keys. Default: those of the method.",
    "trainer.max_epochs": "Number of epochs.",
    "trainer.max_steps": "Number of updates after which the run ends; -1 for no limit.",
    "trainer.max_time": "Time after which the run ends, days:hours:minutes:seconds.",
    "trainer.accelerator": "Kind of device: cpu, gpu, mps, or auto.",
    "trainer.devices": "Number of devices, or their indices.",
    "trainer.precision": "Precision: 32-true, bf16-mixed or 16-mixed; null is 32-true.",
    "trainer.accumulate_grad_batches": "Number of batches whose gradients are accumulated.",
    "trainer.gradient_clip_val": "Gradient norm above which gradients are clipped.",
    "trainer.sync_batchnorm": "Compute BatchNorm over the images of all processes.",
    "trainer.check_val_every_n_epoch": "Number of epochs between validations.",
    "trainer.limit_train_batches": "Batches per epoch: a number, or a share such as 0.5.",
    "trainer.callbacks": "Callbacks of your own, as in --trainer.callbacks+=my_module.MyCallback.",
    "trainer.log_every_n_steps": "Number of steps between rows of metrics.csv.",
    "trainer.enable_progress_bar": "Show the progress bar; null shows it.",
}
"""Descriptions of Lightning's options, and of options that select a class."""

_OWN_DEFAULTS = {"config": "null", "ckpt_path": "null", "seed_everything": "0"}

_COLUMN = 40
_WIDEST = 110


def answer(args: Sequence[str]) -> str | None:
    """Return the help that arguments of ``fit`` ask for, or None if they ask for none.

    ``--help all`` and the help of a class without known sources are left to the parser.

    Raises:
        InputError: help is requested for a class that does not exist.
    """
    if not args:
        return START
    if {"-h", "--help"} & set(args):
        words = [word for option, word in pairwise(args) if option in ("-h", "--help") and word[:1] != "-"]
        if words and words[0] != "all":
            group = words[0] if classes_of(words[0]) else "data"
            raise InputError(f"--help {words[0]}: give --help, --help all, or --{group}.help")
        return None if words else short_help(args)
    return class_help(args)


def class_help(args: Sequence[str]) -> str | None:
    """Return the help of the class or the group of options that ``--OPTION.help`` asks for, or None.

    Raises:
        InputError: the class does not exist.
    """
    for i, arg in enumerate(args):
        if match := re.fullmatch(r"--([\w.]+)\.help(?:=(.*))?", arg):
            option, name = match[1], match[2]
            if name is None and i + 1 < len(args) and not args[i + 1].startswith("-"):
                name = args[i + 1]
            if not classes_of(option):
                return "\n".join(_group_help(option, args)) or None
            return _help_of(option, name or _chosen(option, args))
    return None


def _group_help(group: str, args: Sequence[str]) -> Iterator[str]:
    """Yield the options of a group such as ``trainer`` or ``data.views``, with the defaults of the class."""
    owner = group.rpartition(".")[0]
    chosen = classes_of(owner).get(_chosen(owner, args) or "")
    if chosen is None:
        options: Iterable[Option] = known_options().values()
    else:
        options = (each._replace(name=f"{owner}.{each.name}") for each in chosen.options)
    for each in options:
        if each.name.startswith(f"{group}."):
            yield from _described(each)


def short_help(args: Sequence[str] = ()) -> str:
    """Return the most common options in groups, each with its default and one sentence.

    Args:
        args: arguments of ``fit``. They and their config files choose the classes whose options are listed,
            and replace defaults.

    Raises:
        InputError: a config file cannot be read.
    """
    args = [*_of_configs(args), *args]
    chosen = {
        f"{key}.{option.name}": option
        for key in ("data", "model", "model.encoder", "model.objective")
        if (owner := classes_of(key).get(_chosen(key, args) or ""))
        for option in owner.options
    }
    source = "the values of this command" if set(args) - {"-h", "--help"} else "the defaults"
    lines = [f"usage: ssl-vision fit [--config FILE] [--OPTION VALUE ...] (with {source})"]
    for group, names in GROUPS.items():
        applicable = [name for name in names if name in chosen or not _chosen(_class_of(name), args)]
        required = [
            name
            for name, each in chosen.items()
            if _class_of(name) in names and (each.default is None or name == "data.root")
        ]
        options = (listed(name, chosen.get(name)) for name in dict.fromkeys([*applicable, *required]))
        shown = (each._replace(default=_chosen(each.name, args) or each.default) for each in options)
        lines += ["", f"{group}:", *_table(shown)]
    lines += [
        "",
        "A class comes before its options: --data CIFAR10 --data.root DIR. Options of a",
        "class: --data.help CIFAR10, --model.objective.help MACL. All: --help all.",
    ]
    return "\n".join(lines)


def _of_configs(args: Sequence[str]) -> Iterator[str]:
    """Yield the options of the config files that the arguments name, as arguments.

    Raises:
        InputError: a file cannot be read.
    """
    for arg, following in pairwise([*args, ""]):
        key, equals, file = arg.partition("=")
        if key == "--config":
            content = read_yaml(Path(file if equals else following))
            if isinstance(content, Mapping):
                for name, value in named_settings(content):
                    yield f"--{name}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def listed(name: str, known: Option | None = None) -> Option:
    """Return an option of the short help with its default and its description, which ``known`` replaces."""
    known = known or known_options().get(name, Option(name, _OWN_DEFAULTS.get(name), "", ""))
    known = known._replace(name=name)
    if name not in TEXTS:
        return known._replace(text=_brief(known.sentence))
    classes = classes_of(name) if "{classes}" in TEXTS[name] else ()
    return known._replace(text=TEXTS[name].format(classes=", ".join(classes)))


def _chosen(option: str, args: Sequence[str]) -> str | None:
    """Return the class that the arguments choose for an option."""
    named = None
    for arg, following in pairwise([*args, ""]):
        key, equals, value = arg.partition("=")
        if key == f"--{option}":
            named = value if equals else following
    return named


def _class_of(option: str) -> str:
    """Return the option that chooses the class which has an option, such as ``data`` for ``data.root``."""
    return option.rpartition(".")[0]


def _help_of(option: str, name: str | None) -> str | None:
    """Return the help of a class, or of the default class together with the names of the others."""
    classes = classes_of(option)
    if name is None:
        width = max(map(len, classes))
        lines = [f"--{option} takes one of these classes, or one of yours:", ""]
        lines += [f"  {each:<{width}}  {classes[each].sentence}" for each in classes]
        first = default_class(option)
        return "\n".join([*lines, "", *_class_help(option, first, " (the default)")] if first else lines)
    owner = classes.get(name) or (definition(name) if dotted(name) else None)
    if owner is None and not dotted(name):
        raise InputError(f"{option}: no class named {name}{closest_match(name, list(classes))}")
    return "\n".join(_class_help(option, owner)) if owner else None


def _class_help(option: str, owner: Definition, note: str = "") -> Iterator[str]:
    yield from textwrap.wrap(f"{owner.name}{note}: {owner.sentence}", _width())
    if owner.options:
        yield ""
    for each in owner.options:
        name = f"{option}.{each.name}"
        yield from _described(each._replace(name=name, default=defaults().get(name, each.default)))


def _described(option: Option) -> Iterator[str]:
    """Yield the lines of an option with its values."""
    text = capitalized(option.text)
    text = f"{text} [{option.values}]" if option.values else text
    yield from _table([option._replace(text=text)])


def _table(options: Iterable[Option]) -> Iterator[str]:
    """Yield the lines of a table of options: name and default on the left, text on the right."""
    for option in options:
        left = f"  --{option.name} {'(required)' if option.default is None else option.default}"
        wrapped = textwrap.wrap(option.text, _width() - _COLUMN) or [""]
        if len(left) >= _COLUMN:
            yield left
            left = ""
        for line in wrapped:
            yield f"{left:<{_COLUMN}}{line}".rstrip()
            left = ""


def _brief(sentence: str) -> str:
    """Cut a sentence at its first semicolon or citation."""
    text = re.split(r"; | \((?=[A-Z]\w+ (?:et al|and))", sentence)[0]
    return text if text.endswith((".", ":")) else f"{text}."


def _width() -> int:
    return max(80, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
