"""Options of ``fit`` and ``validate`` besides those of model, data and trainer."""

from typing import Literal

from jsonargparse.typing import PositiveInt
from pytorch_lightning.cli import LightningArgumentParser

from ssl_vision.callbacks import RepresentationMetrics
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
"""Defaults of ``fit`` by option. `choices` reads them, and the texts below, from this file as literals."""

NOT_OPTIONS = ("encoder", "bank", "queries", "pairs")
"""Arguments of RepresentationMetrics that are not options, because they are for other modules."""


def add_run_options(parser: LightningArgumentParser) -> None:
    """Add the options of the run directory, of logging and of metrics, and the defaults of all options."""
    parser.add_argument(
        "--name", type=str | None, default=None, help="Run name. Default: derived from the config."
    )
    parser.add_argument(
        "--runs_dir", type=str, default="runs", help="Directory that contains the run directories."
    )
    parser.add_argument("--overwrite", type=bool, default=False, help="Replace an existing run of this name.")
    parser.add_argument(
        "--patience",
        type=PositiveInt,
        default=10,
        help="Consecutive steps with a non-finite loss or gradient after which the run ends.",
    )
    parser.add_argument(
        "--initial_checkpoint",
        type=str | None,
        default=None,
        help="Initial weights: a run, a checkpoint, an encoder's state dict, or hf://OWNER/NAME. "
        "A state dict is a .safetensors file or was written by torch.save.",
    )
    parser.add_argument(
        "--save_every_n_epochs",
        type=PositiveInt,
        default=1,
        help="Epochs between two saves of last.ckpt, which is also saved when the run ends or is stopped.",
    )
    parser.add_argument(
        "--save_every_n_steps",
        type=PositiveInt | None,
        default=None,
        help="Also save last.ckpt every n steps, within the epochs.",
    )
    parser.add_argument(
        "--wandb",
        type=bool | Literal["offline"],
        default=False,
        help="Log to Weights & Biases as well: true, false or offline.",
    )
    parser.add_argument(
        "--wandb_artifacts",
        type=Artifacts,
        default="none",
        help="Checkpoint to upload to W&B: last or none. Exported encoders are uploaded with it.",
    )
    parser.add_argument(
        "--wandb_media",
        type=bool,
        default=False,
        help="Upload the report, views, neighbours and the embedding map to W&B.",
    )
    parser.add_argument("--report", type=bool, default=True, help="Write report.html when training ends.")
    parser.callback_keys.append("metrics")
    parser.add_class_arguments(
        RepresentationMetrics, "metrics", fail_untyped=False, sub_configs=True,
        skip=set(NOT_OPTIONS),
    )  # fmt: skip
    parser.add_argument(
        "--gradients", type=bool, default=False, help="Log diagnostics of the objective's gradient."
    )
    parser.add_argument(
        "--online_probe",
        type=bool,
        default=False,
        help="Train a linear classifier along with the encoder and log its accuracy.",
    )
    parser.set_defaults(DEFAULTS)
