"""The evaluation of a run or of one of its checkpoints, as the command line requests it."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ssl_vision.cli.classes import allowed_classes
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError
from ssl_vision.evaluation.cache import FeatureCache
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.options import chosen_protocols, evaluation_parser
from ssl_vision.evaluation.results import Evaluation, Stored, check_output, written
from ssl_vision.evaluation.splits import Splits, data_place, same_data
from ssl_vision.evaluation.subject import Network, Subject, networks_beside
from ssl_vision.methods import Layers
from ssl_vision.pretrained.encoder_options import instantiated
from ssl_vision.pretrained.rebuild import ROOT_NEEDED, safe_data, trained_model, untrained_model
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint, run_beside
from ssl_vision.runs.evaluation_file import evaluation_summary, merged, read_rows
from ssl_vision.runs.folder import owned
from ssl_vision.runs.registry import Run
from ssl_vision.runs.settings import class_name
from ssl_vision.tracking.artifacts import SCHEME, fetched_checkpoint
from ssl_vision.tracking.wandb import mirror_rows


class RunRequest:
    """The evaluation of a run: its data, its protocols, its networks, and where rows are stored.

    Args:
        args: arguments of the command, the checkpoint or the run first.

    Raises:
        InputError: the checkpoint, an option or ``evaluation.json`` is invalid.
    """

    def __init__(self, args: Sequence[str]) -> None:
        remote = args[0].startswith(SCHEME)
        self.checkpoint = read_checkpoint(fetched_checkpoint(args[0]) if remote else args[0])
        self.config = self.checkpoint.config
        self.allow_class = allowed_classes(args)
        self.folder = run_beside(self.checkpoint)
        self.by_user = not remote and owned(self.folder.path, self.checkpoint.path)
        self._data_of_run = _data_of_run(self.checkpoint, args, self.allow_class, own=self.by_user)
        parser = evaluation_parser(self._data_of_run)
        self.options = options = parser.parse_args(list(args))
        if options.weights is not None:
            raise InputError(
                "--weights requires --encoder; --beside NAME=FILE evaluates weights beside a run"
            )
        if options.data.init_args.get("root") == ROOT_NEEDED:
            raise InputError(
                f"{self.checkpoint.path}: belongs to another user: give the images with --data.root"
            )
        if options.output is not None:
            check_output(options.output)
        if "seed" in options.data.init_args and options.data.init_args.seed is None:
            options.data.init_args.seed = self.config.get("seed_everything")  # of the views in the report
        built = instantiated(parser, options)
        self.data: ImageData = built.data
        self.data.check_evaluated()
        self.own_data = same_data(self.config["data"], self.data)
        metrics = self.config.get("metrics") or {}
        self.protocols = chosen_protocols(built, metrics, self.data, own=self.own_data)
        read_rows(self.folder.evaluation_file)

    def place(self) -> dict[str, str]:
        """Fields of a row that distinguish the data from those of the run."""
        return data_place(self.config["data"], self._data_of_run, self.options.data.as_dict(), self.data)

    def subject(self, splits: Splits) -> Subject:
        """The trained network, those of ``--beside`` and, as a baseline, the untrained network."""
        device, config, options = chosen_device(self.options.device), self.config, self.options
        same_classes = self.checkpoint.classes in (None, list(splits.images["train"].classes))
        trained_here = same_classes and class_name(config["data"]) == splits.data
        cache = FeatureCache(self.folder.features) if options.cache else None
        extractor = partial(
            FeatureExtractor, splits=splits, description=config["model"], cache=cache,
            seed=config["seed_everything"],
        )  # fmt: skip
        untrained = partial(untrained_model, config, where=self.checkpoint.path, allow_class=self.allow_class)
        trained = extractor(
            trained_model(self.checkpoint, allow_class=self.allow_class).to(device),
            layers=Layers._fields,
            online=self.checkpoint.online if trained_here else None,
        )
        networks = [
            Network("trained", trained, self.checkpoint.epoch),
            *networks_beside(
                options.beside, trained, lambda: untrained().backbone, allow_class=self.allow_class
            ),
        ]
        if options.baselines:
            baseline = extractor(untrained().to(device), layers=("backbone",))
            networks.append(Network("untrained", baseline))
        about = f"epoch {self.checkpoint.epoch}, seed {trained.seed}"
        return Subject(tuple(networks), splits, about, pixels=options.baselines)

    def stored(self, subject: Subject, result: Evaluation) -> Stored:
        """Write the rows to evaluation.json or ``--output``, and to W&B if the run is the user's."""
        folder, options, epoch = self.folder, self.options, self.checkpoint.epoch
        output, rows = folder.evaluation_file, [row.as_dict() for row in result.rows]
        if options.output:
            output = Path(options.output)
        else:
            rows = merged(read_rows(output), rows)
        error = written(output, rows)
        of_last_epoch = folder.config_file.exists() and epoch == Run(folder.path).epoch
        if self.by_user:  # another user's config must not set the target of an upload
            values = evaluation_summary(rows, self.config, epoch=epoch) if of_last_epoch else {}
            mirror_rows(folder, self.config, rows, name=output.stem, summary=values)
        result = dataclasses.replace(result, output=output)
        current = of_last_epoch or self.checkpoint.path == folder.last
        of_training = self.own_data and current and "settings" not in subject.splits.place
        if not (of_training and options.report) or options.output:
            return Stored(result, error)
        trained = subject.networks[0].extractor
        page = {
            "path": folder.path,
            "data": self.data,
            "embedded": trained if trained.is_embedded else None,
            "allow_class": self.allow_class,
        }
        return Stored(result, error, page)


def _data_of_run(
    checkpoint: Checkpoint, args: Sequence[str], allow_class: Sequence[str], *, own: bool
) -> dict[str, Any]:
    """Return the data section that options of the command line modify."""
    path, config = checkpoint.path, checkpoint.config
    try:
        return safe_data(config, where=path, owned=own, allow_class=allow_class)
    except InputError:
        if not any(arg == "--data" or arg.startswith("--data=") for arg in args):
            raise
        # Data of another class are evaluated. Only the views of the run's own data are used, whose class is
        # part of this package.
        views = {"views": config["data"]["init_args"]["views"]}
        other = {"class_path": "ssl_vision.data.CIFAR10", "init_args": views}
        return safe_data({**config, "data": other}, where=path, owned=own)
