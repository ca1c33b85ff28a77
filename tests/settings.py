"""Where the configs are, and the options that make a run on the digits take a second."""

from pathlib import Path

CONFIGS = Path(__file__).parent.parent / "configs"

TINY = [
    "--model.width=4",
    "--model.hidden_dim=16",
    "--model.output_dim=8",
    "--data.batch_size=64",
    "--trainer.max_epochs=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.limit_train_batches=4",
    "--trainer.log_every_n_steps=1",
    "--trainer.accelerator=cpu",
    "--metrics.k=5",
    "--report=false",
]
