import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image
from pytorch_lightning.callbacks import ModelCheckpoint
from settings import resnet

from ssl_vision.data import Digits, ImageData, ImageFolder, Views
from ssl_vision.methods import SimCLR

EPOCH = 5


class BatchRecorder(pl.Callback):
    """Records the batches that were trained on, and can raise an error at the start of one."""

    def __init__(self, crash=None):
        self.recorded = []
        self.crash = crash

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.crash:
            raise RuntimeError
        self.recorded.append((trainer.current_epoch, batch_idx, batch.indices.tolist()))


def fit(folder, *callbacks, ckpt_path=None, crash=None, data: ImageData | None = None, **options):
    recorder = BatchRecorder(crash)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False} | options
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        default_root_dir=folder,
        enable_checkpointing=bool(callbacks),
        callbacks=[*callbacks, recorder],
        limit_val_batches=1,
        num_sanity_val_steps=0,
        **options,
    )
    model = SimCLR(encoder=resnet(width=2), hidden_dim=8, output_dim=4, seed=0)
    digits = Digits(batch_size=256, eval_batch_size=64, seed=1)
    trainer.fit(model, datamodule=data or digits, ckpt_path=ckpt_path)
    return {key: value.clone() for key, value in model.state_dict().items()}, recorder.recorded


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("step", [1, 3, EPOCH, EPOCH + 2])
def test_run_stopped_at_any_step_resumes_bitwise(step, tmp_path, whole):
    checkpoint = ModelCheckpoint(dirpath=tmp_path, filename="kept", every_n_train_steps=step, save_top_k=-1)
    fit(tmp_path, checkpoint, max_steps=step)
    weights, recorded = fit(tmp_path, ckpt_path=tmp_path / "kept.ckpt")
    assert recorded == whole[1][step:]
    assert all(torch.equal(weights[key], whole[0][key]) for key in whole[0])


def test_loader_created_after_training_has_all_batches(tmp_path):
    data = Digits(batch_size=256, seed=1)
    fit(tmp_path, data=data)
    loader = data.train_dataloader()
    assert sum(1 for _ in loader) == len(loader) == EPOCH


@pytest.mark.parametrize("step", [2, EPOCH + 1])
def test_batch_interrupted_by_crash_is_repeated_after_resuming(step, tmp_path, whole):
    checkpoint = ModelCheckpoint(dirpath=tmp_path, save_on_exception=True, every_n_epochs=9)
    with pytest.raises(RuntimeError):
        fit(tmp_path, checkpoint, crash=step)
    (path,) = tmp_path.glob("*.ckpt")
    weights, recorded = fit(tmp_path, ckpt_path=path)
    assert recorded == whole[1][step:]
    assert all(torch.equal(weights[key], whole[0][key]) for key in whole[0])


@pytest.mark.parametrize("step", [2, 5])
def test_crashed_run_with_streamed_images_resumes_bitwise(step, tmp_path):
    (tmp_path / "photos").mkdir()
    generator = np.random.default_rng(0)
    for number in range(50):
        pixels = generator.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.jpg")

    def photos(workers):
        options = {"views": Views(size=8), "image_size": 8, "batch_size": 16, "seed": 1}
        return ImageFolder(root=tmp_path / "photos", stream=True, workers=workers, **options)

    whole, order = fit(tmp_path, data=photos(0))
    checkpoint = ModelCheckpoint(dirpath=tmp_path, save_on_exception=True, every_n_epochs=9)
    with pytest.raises(RuntimeError):
        fit(tmp_path, checkpoint, crash=step, data=photos(1))
    (path,) = tmp_path.glob("*.ckpt")
    weights, recorded = fit(tmp_path, ckpt_path=path, data=photos(2))
    assert recorded == order[step:]
    assert all(torch.equal(weights[key], whole[key]) for key in whole)
