"""Training and evaluation from Python, with the parser and the code of the command line."""

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from os import PathLike
from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import nn

from ssl_vision.cli.fit import executed
from ssl_vision.cli.fit_command import checked
from ssl_vision.cli.fit_summary import validation_lines, validations
from ssl_vision.cli.import_paths import local_modules
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError, Interrupted
from ssl_vision.evaluation.command import evaluated
from ssl_vision.evaluation.protocol import read_protocols
from ssl_vision.evaluation.results import Evaluation
from ssl_vision.evaluation.subject import Subject, run_protocols
from ssl_vision.experiments.report.report import write
from ssl_vision.progress import epochs_text
from ssl_vision.runs.registry import Run
from ssl_vision.tables import html_table

_ONE_THREAD = threading.RLock()
"""Held by `fit` and `evaluate`, which use the random generators of the process."""

Config = str | PathLike[str] | Mapping[str, Any]

_REPEATED = ("allow_class", "other", "protocol")
"""Options of ``evaluate`` that are given once for each value."""


class TrainedRun(Run):
    """A run trained by `fit`: displays its results, and is accepted wherever the path of a run is.

    `Run` describes the access to its config, metrics and evaluation.
    """

    def __fspath__(self) -> str:
        return str(self.folder.path)

    def __repr__(self) -> str:
        facts = (f"  {name:<13}  {value}" for name, value in self._facts())
        return "\n".join([self._title(), *facts, *validation_lines(self)])

    def _repr_html_(self) -> str:
        facts = "".join(f"<br>{name}: <code>{escape(value)}</code>" for name, value in self._facts())
        images = f"<p>validation on {self.validated_on}</p>" if (lines := validations(self)) else ""
        return f"<p><b>{escape(self._title())}</b>{facts}</p>{images}{html_table(lines) if lines else ''}"

    def _title(self) -> str:
        objective, data, seed = (self.setting(key) for key in ("objective", "data", "seed"))
        return f"{self.name}: {objective} on {data}, seed {seed}, {epochs_text(self.epoch)}"

    def _facts(self) -> Iterator[tuple[str, str]]:
        yield "run directory", str(self.folder.path)
        if self.folder.report_file.exists():
            yield "report", f"{self.folder.report_file} (open it in a browser)"


def fit(config: Config | Sequence[Config], **overrides: Any) -> TrainedRun:
    """Pretrain an encoder, as ``ssl-vision fit`` does.

    The result is the same, bit for bit, as that of the command with these config files and options. Random
    generators and environment variables are left as they were.

    Args:
        config: path of a config file, name of a recipe, such as ``"pretrain/digits"``, options as a dict, or
            a list of them, of which later ones replace values of earlier ones. Keys of a dict are the names
            of options, such as ``"trainer.max_epochs"``, or sections of a config file, such as ``"trainer"``.
            Values are numbers, also those of NumPy, strings, lists and dicts.
        **overrides: further options, which replace values of the config; those with dots in their names are
            given as ``**{"model.objective": "MACL"}``.

    Returns:
        The run, which a notebook displays with its last metrics.

    Raises:
        InputError: an option, a config file, the data or a checkpoint is not usable.
        KeyboardInterrupt: the run was interrupted; ``ckpt_path="last"`` continues it.

    Example:
        >>> import tempfile
        >>> tiny = {"data": "Digits", "model.encoder.width": 4, "trainer": {"max_epochs": 1, "max_steps": 2}}
        >>> run = fit(tiny, name="first", runs_dir=tempfile.mkdtemp(), report=False)
        >>> run.steps, run.setting("objective")
        (2, 'InfoNCE')
    """
    configs = [config] if isinstance(config, (str, PathLike, Mapping)) else list(config)
    args: list[str] = []
    for each in configs:
        args += _options(each) if isinstance(each, Mapping) else [f"--config={os.fspath(each)}"]
    args += _options(overrides)
    with local_modules(args), _globals_restored():
        try:
            outcome = executed(checked(args))
        except Interrupted as error:
            if error.signal == signal.SIGINT:
                raise KeyboardInterrupt("saved; continue with ckpt_path='last'") from None
            raise SystemExit(128 + error.signal) from None
    if outcome.page is not None:
        write(**outcome.page)
    return TrainedRun(outcome.folder.path)


def evaluate(source: nn.Module | str | PathLike[str], **options: Any) -> Evaluation:
    """Evaluate a run, as ``ssl-vision evaluate`` does, or any encoder on any labelled data sets.

    A run is compared with its untrained network and raw pixels. Its results are added to ``evaluation.json``,
    and its report is updated.

    Args:
        source: result of `fit`, a run directory, a checkpoint, or a module that maps images (N, 3, H, W) to
            features (N, F).
        **options: for a run, options of the command, such as ``protocol=["macl", "few_labels"]``,
            ``baselines=False`` or ``**{"data.root": "images"}``. For a module, the arguments of
            `ssl_vision.evaluation.subject.Subject.of_module`, of which ``train`` and ``test`` are required,
            and ``protocol``: names of protocols, ``"all"``, or paths of ``.yaml`` files of your own.

    Returns:
        The results, which a notebook displays as tables.

    Raises:
        InputError: an option, the checkpoint or the data is not usable, or nothing could be measured.

    Example:
        >>> import torch
        >>> images = torch.rand(30, 3, 8, 8)
        >>> data = [(image, row % 3) for row, image in enumerate(images)]
        >>> result = evaluate(torch.nn.Flatten(), train=data, test=data, protocol="solo")
        >>> result.value("knn_top1", k=20) > 0.3
        True
    """
    if isinstance(source, nn.Module):
        names = options.pop("protocol", "macl")
        names = [names] if isinstance(names, (str, PathLike)) else names
        protocols = read_protocols(list(map(os.fspath, names)), k=ImageData.knn_k)
        return run_protocols(Subject.of_module(source, **options), protocols)
    repeated = {name: options.pop(name) for name in _REPEATED if name in options}
    args = [os.fspath(source), *_options(options)]
    for name, values in repeated.items():
        listed = [values] if isinstance(values, (str, PathLike)) else values
        args += [f"--{name}={value}" for value in listed]
    with local_modules(args), _globals_restored():
        result, page = evaluated(args)
    if page is not None:
        write(**page)
    return result


def _options(values: Mapping[str, Any]) -> Iterator[str]:
    """Iterate over the values as options of the command line.

    Raises:
        InputError: a value cannot be written in a config file.
    """
    for name, value in values.items():
        try:
            plain = isinstance(value, (str, PathLike))
            text = os.fspath(value) if plain else json.dumps(value, default=_plain)
        except TypeError as error:
            raise InputError(
                f"{name}: expected numbers, strings, lists and dicts, not {value!r}; give a class as a dict "
                "of class_path and init_args"
            ) from error
        yield f"--{name}={text}"


def _plain(value: Any) -> Any:
    """Return a number or an array of NumPy as numbers of Python, and a path as text."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else os.fspath(value)


@contextmanager
def _globals_restored() -> Iterator[None]:
    """Restore what Lightning sets in the process: generators, environment variables and torch's kernels.

    Raises:
        InputError: another thread is within this function.
    """
    if not _ONE_THREAD.acquire(blocking=False):
        raise InputError(
            "another thread of this process trains or evaluates, with the same random generators: "
            "use one process for each, for example with ssl-vision sweep"
        )
    environment = dict(os.environ)
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        with isolate_rng():
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        _ONE_THREAD.release()
