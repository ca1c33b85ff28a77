"""Options of ``fit``: their defaults, those of a run, and checks of the trainer's."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt, restricted_number_type
from pytorch_lightning.callbacks import Callback, StochasticWeightAveraging
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn

from ssl_vision.callbacks import RepresentationMetrics
from ssl_vision.errors import InputError, check
from ssl_vision.runs.encoder_weights import stated_normalisation
from ssl_vision.tracking.wandb_callback import Artifacts

DEFAULTS = {
    "model": {
        "class_path": "ssl_vision.methods.SimCLR",
        "init_args": {
            "objective": {"class_path": "ssl_vision.objectives.InfoNCE"},
            "encoder": {"class_path": "ssl_vision.encoders.ResNet"},
        },
    },
    "trainer.max_epochs": 200,
    "trainer.num_sanity_val_steps": 0,
    "trainer.log_every_n_steps": 10,
    "trainer.enable_model_summary": False,
}
"""Defaults of ``fit`` by option."""

DEFAULT_DATA = "Digits"

_Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)])

_REFUSED = {
    "BaseFinetuning": "a continued run would freeze the backbone again; set --model.optimizer instead",
    "BatchSizeFinder": "the batch size would not be the recorded one; set --data.batch_size",
    "GradientAccumulationScheduler": "schedules count steps with a fixed --trainer.accumulate_grad_batches",
    "LearningRateFinder": "the learning rate would not be the recorded one; set --model.optimizer.lr",
    "ModelPruning": "its masks are not in the checkpoint, so the run could not be continued",
}
"""Callbacks that change recorded settings, or whose state is not in checkpoints, with the reason."""


def add_run_options(parser: LightningArgumentParser) -> None:
    """Add the options of the run directory, of logging and of metrics, and the defaults of all options."""

    def add(name: str, kind: Any, default: Any, text: str) -> None:
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)

    text = "Seed of the initial weights, the batches and the views."
    add("seed_everything", _Seed, 0, text)
    add("name", str | None, None, "Run name. Default: derived from the config.")
    add("runs_dir", str, "runs", "Directory that contains the run directories.")
    add("overwrite", bool, False, "Replace an existing run of this name.")
    text = "Consecutive steps with a non-finite loss or gradient after which the run ends."
    add("patience", PositiveInt, 10, text)
    text = "Initial weights: a run, a checkpoint, an encoder's state dict, or hf://OWNER/NAME. "
    text += "A state dict is a .safetensors file or was written by torch.save."
    add("initial_checkpoint", str | None, None, text)
    text = "Name the tensors of initial_checkpoint by their order, whose shapes must be those of the encoder."
    add("weights_by_order", bool, False, text)
    text = "Epochs between two saves of last.ckpt, which is also saved when the run ends or is stopped."
    add("save_every_n_epochs", PositiveInt, 1, text)
    text = "Also save last.ckpt every n steps, within the epochs."
    add("save_every_n_steps", PositiveInt | None, None, text)
    add("report", bool, True, "Write report.html when training ends.")
    add("ckpt_path", str | None, None, "Checkpoint to continue from, a run, or last.")
    parser.add_class_arguments(
        RepresentationMetrics, "metrics", fail_untyped=False, sub_configs=True,
        skip={"num_classes"},  # is for other modules
    )  # fmt: skip
    add("gradients", bool, False, "Log diagnostics of the objective's gradient.")
    text = "Train a linear classifier along with the encoder and log its accuracy."
    add("online_probe", bool, False, text)
    text = "Checkpoint to upload to W&B: last or none. Exported encoders are uploaded with it."
    add("wandb_artifacts", Artifacts, "none", text)
    text = "Upload the report to W&B, with images."
    add("wandb_media", bool, False, text)
    text = "Log to Weights & Biases as well: true, false or offline."
    add("wandb", bool | Literal["offline"], False, text)
    parser.set_defaults(DEFAULTS)


def starts_from_weights(config: Namespace) -> bool:
    """Return True if training starts from given weights of the encoder instead of random ones.

    Raises:
        InputError: weights are given twice.
    """
    encoder = config.model.get("init_args", {}).get("encoder")
    own = isinstance(encoder, Namespace) and encoder.get("init_args", {}).get("pretrained", False)
    if own and config.initial_checkpoint is not None:
        raise InputError("give --initial_checkpoint or --model.encoder.pretrained true, not both")
    return config.initial_checkpoint is not None or bool(own)


def set_options_for_weights(config: Namespace, *, given: Namespace) -> None:
    """Set the normalisation and the BatchNorm statistics of given initial weights, unless the user sets them.

    Images are normalised as the weights expect, and BatchNorm layers of the encoder use their running
    statistics. Runs, checkpoints and exported encoders contain the expected mean and standard deviation, and
    timm has those of its models.

    Args:
        config: config of ``fit``, modified in place.
        given: the options that the command and its config files set, without defaults.
    """
    model = config.model.get("init_args", {})
    if "encoder_statistics" in model and "model.init_args.encoder_statistics" not in given:
        model.encoder_statistics = "fixed"
    views = config.data.get("init_args", {}).get("views")
    if not isinstance(views, Namespace):
        return
    if any(f"data.init_args.views.{name}" in given for name in ("mean", "std")):
        return
    file, encoder = config.initial_checkpoint, model.get("encoder")
    expected = None if file is None else stated_normalisation(file)
    if expected is None and isinstance(encoder, Namespace) and encoder.class_path.endswith(".Timm"):
        import timm

        with suppress(RuntimeError):  # the encoder itself reports a name that does not exist
            if (weights := timm.get_pretrained_cfg(encoder.init_args.name)) is not None:
                expected = weights.mean, weights.std
    if expected is not None and len(expected[0]) == len(views.mean) and expected != (views.mean, views.std):
        views.mean, views.std = expected
        rank_zero_info(
            f"images are normalised as the initial weights expect: mean {views.mean}, std {views.std}"
        )


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Check that no callback makes the run differ from its record, or from the run that continues it.

    `StochasticWeightAveraging` only causes a warning.

    Raises:
        InputError: a callback is one of those in the table, or derived from one.
    """
    for callback in callbacks:
        own = type(callback)
        if isinstance(callback, StochasticWeightAveraging):
            rank_zero_warn(f"{own.__name__}: a continued run differs; with EMAWeightAveraging it does not")
        for name in {cls.__name__ for cls in own.__mro__} & _REFUSED.keys():
            raise InputError(f"--trainer.callbacks {own.__name__} cannot be used: {_REFUSED[name]}")


def check_trainer(trainer: Namespace) -> None:
    """Check the trainer options whose invalid values Lightning does not reject.

    Raises:
        InputError: a value is out of range.
    """
    for name in ("max_epochs", "max_steps"):
        if trainer[name] not in (None, -1):  # -1 is no limit
            check(f"--trainer.{name}", trainer[name], at_least=1)
    for name in ("accumulate_grad_batches", "check_val_every_n_epoch"):
        check(f"--trainer.{name}", trainer[name], at_least=1)
    for name in ("limit_train_batches", "val_check_interval"):
        if isinstance(trainer[name], (int, float)):
            check(f"--trainer.{name}", trainer[name], above=0)
    check("--trainer.gradient_clip_val", trainer.gradient_clip_val, at_least=0)
    if "spawn" in str(trainer.strategy):
        raise InputError(f"--trainer.strategy {trainer.strategy} cannot pass a run to its processes; use ddp")
