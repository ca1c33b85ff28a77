import logging

import pytest
import pytorch_lightning as pl
import torch
from torchvision.transforms.functional import to_pil_image

from ssl_vision.data import Batches, Digits, ImageFolder, Images
from ssl_vision.data.loading import loader as module
from ssl_vision.data.loading.loader import DeviceCopies
from ssl_vision.errors import InputError

CUDA = torch.device("cuda", 0)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def images(count, side=96, device="meta", **options):
    store = torch.empty(count, 3, side, side, dtype=torch.uint8, device=device)
    return Images(store, torch.zeros(count, dtype=torch.int64), ("a",), **options)


def placement_message(caplog):
    (record,) = [record for record in caplog.records if record.getMessage().startswith("images: ")]
    return record.getMessage()


@pytest.fixture
def set_free_memory(monkeypatch, caplog):
    """Return a function that sets the free memory that a CUDA device reports."""
    caplog.set_level(logging.INFO)

    def set_bytes(count):
        monkeypatch.setattr(module, "free_memory", lambda device: int(count))

    return set_bytes


@pytest.fixture
def fake_device_copy(monkeypatch):
    """Let copies to a device that does not exist succeed."""
    monkeypatch.setattr(module, "_copy", lambda data, device: data.store.clone())
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)


def test_resident_on_cpu_returns_same_images_and_logs_nothing(caplog):
    data = images(10)
    assert DeviceCopies(0.5).on(data, torch.device("cpu")) is data
    assert not caplog.records


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_images_that_do_not_fit_stay_in_host_memory_and_log_why(set_free_memory, caplog, share):
    set_free_memory(4e9)
    data, resident = images(105_000), DeviceCopies(share)
    part = data.select(torch.arange(10))
    assert resident.on(data, CUDA) is data
    assert resident.on(part, CUDA) is part
    expected = f"2.9 GB > {100 * share:g} % of 4.0 GB free on cuda:0"
    assert placement_message(caplog) == f"images: {expected}, kept in host memory and sent in pinned batches"


def test_fragmented_device_memory_keeps_images_in_host_memory(set_free_memory, caplog, monkeypatch):
    def fail(data, device):
        raise torch.OutOfMemoryError

    set_free_memory(1e12)
    monkeypatch.setattr(module, "_copy", fail)
    data = images(105_000)
    assert DeviceCopies(0.5).on(data, CUDA) is data
    assert placement_message(caplog).startswith(
        "images: no 2.9 GB in one piece on cuda:0, kept in host memory"
    )


def test_datasets_that_share_a_store_share_its_device_copy(set_free_memory, caplog, fake_device_copy):
    set_free_memory(1e6)
    data, resident = images(40, side=8, device="cpu"), DeviceCopies(0.5)
    parts = [data, data.select(torch.arange(40) % 2 == 0), data.select(torch.arange(5))]
    placed = [resident.on(part, CUDA) for part in parts]
    assert placed[0].store is placed[1].store is placed[2].store is not data.store
    assert placed[0].rows is None
    assert placed[1].rows.tolist() == list(range(0, 40, 2))
    assert placement_message(caplog) == "images: 0.0 MB on cuda:0"


def test_resident_share_limits_all_datasets_together(set_free_memory, fake_device_copy):
    size = 3 * 8 * 8 * 10
    resident = DeviceCopies(0.5)
    set_free_memory(2.5 * size)
    first, second = images(10, side=8, device="cpu"), images(10, side=8, device="cpu")
    assert resident.on(first, CUDA) is not first
    set_free_memory(1.5 * size)
    assert resident.on(second, CUDA) is second


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_resident_share_out_of_range_raises_input_error(share):
    with pytest.raises(InputError, match=rf"^resident must be at least 0 and at most 1, got {share}"):
        Digits(resident=share)


class Recorder(pl.LightningModule):
    """Records the batches that it receives."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.train_batches, self.val_batches = [], []

    def training_step(self, batch, _):
        self.train_batches.append(batch)
        return self.weight * 0

    def validation_step(self, batch, _, dataloader_idx=0):
        self.val_batches.append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], lr=0.1)


def fit_recorder(data, accelerator, folder):
    options = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=2,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        **options,
    )
    model = Recorder()
    trainer.fit(model, datamodule=data)
    return model, data


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("resident", [0.5, 0.0, 1e-9])
@pytest.mark.parametrize("cached", [False, True])
def test_gpu_batches_match_cpu_batches_wherever_images_are_stored(resident, cached, tmp_path):
    def data(**options):
        if not cached:
            return Digits(seed=1, batch_size=200, **options)
        source = Digits().split("train")
        for row in range(300) if not (tmp_path / "photos").exists() else ():
            path = tmp_path / "photos" / f"c{int(source.labels[row])}" / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            to_pil_image(source.images[row]).save(path)
        return ImageFolder(
            root=tmp_path / "photos", image_size=8, cache="always", batch_size=64, seed=1, **options
        )

    cpu_model, _ = fit_recorder(data(), "cpu", tmp_path)
    gpu_model, _ = fit_recorder(data(resident=resident), "gpu", tmp_path)
    for gpu_batches, cpu_batches in (
        (gpu_model.train_batches, cpu_model.train_batches),
        (gpu_model.val_batches, cpu_model.val_batches),
    ):
        for batch, expected in zip(gpu_batches, cpu_batches, strict=True):
            assert batch.images.device == batch.labels.device == batch.indices.device == CUDA
            torch.testing.assert_close(batch.images.cpu(), expected.images, rtol=0, atol=1e-4)
            assert torch.equal(batch.labels.cpu(), expected.labels)
            assert torch.equal(batch.indices.cpu(), expected.indices)


@pytest.mark.gpu
@gpu
def test_device_holds_one_copy_and_batches_need_no_synchronization():
    source, resident = Digits().split("train"), DeviceCopies(0.5)
    wide = Images(source.store.repeat(20, 1, 1, 1), source.labels.repeat(20), source.classes)
    before = torch.cuda.memory_allocated()
    placed = [
        resident.on(part, CUDA)
        for part in (wide, wide.select(torch.arange(100)), wide.select(wide.labels > 3))
    ]
    assert torch.cuda.memory_allocated() - before < 1.6 * wide.store.nbytes
    loaders = [
        Batches(data, batch_size=64, shuffle=True, drop_last=True, seed=0, device=CUDA) for data in placed
    ]
    for batches in loaders:
        steps = iter(batches)
        next(steps)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in steps:
                assert batch.images.device == CUDA
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("resident", [0.5, 0.0])
def test_batches_are_on_device_or_in_pinned_memory(resident):
    data = DeviceCopies(resident).on(Digits().split("train"), CUDA)
    for batch in Batches(data, batch_size=64, shuffle=True, drop_last=True, seed=0, device=CUDA):
        assert all(field.is_cuda or field.is_pinned() for field in batch[:3])
