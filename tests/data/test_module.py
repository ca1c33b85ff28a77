import dataclasses
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LightningCLI

from ssl_vision.data import STL10, Digits, ImageData, Images, Views
from ssl_vision.data.random import Stream, fold
from ssl_vision.errors import InputError

VIEWS = Views(size=6)


class Toy(ImageData):
    """Data with 40 train rows, every fourth unlabelled, 10 test rows, and 10 more rows for pretraining."""

    def __init__(self, labels=None, **options):
        options = {"batch_size": 16, "eval_batch_size": 7, "seed": 3} | options
        super().__init__(root="", views=VIEWS, **options)
        self.labels = torch.arange(40) % 4 - 1 if labels is None else labels
        self.reads = []

    def read(self, split):
        self.reads.append(split)
        labels = {
            "pretrain": torch.cat((self.labels, torch.full((10,), -1))),
            "train": self.labels,
            "test": torch.arange(10) % 3,
        }[split]
        generator = torch.Generator().manual_seed(len(split))
        pixels = torch.randint(0, 256, (len(labels), 3, 8, 8), generator=generator, dtype=torch.uint8)
        return Images(pixels, labels, ("a", "b", "c"))


class Recorder(pl.LightningModule):
    """Records the batches that it receives, with their epochs."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.recorded = {"train": [], "bank": [], "queries": []}

    def training_step(self, batch, _):
        self.recorded["train"].append((self.current_epoch, batch))
        return self.weight * 0

    def validation_step(self, batch, _, dataloader_idx=0):
        if not self.trainer.sanity_checking:
            self.recorded[("queries", "bank")[dataloader_idx]].append((self.current_epoch, batch))

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], lr=0.1)


def fit(module, data, folder, epochs=2, **options):
    """Train a module, and return the batches that it received."""
    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options |= dict.fromkeys(names, False)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=epochs, default_root_dir=folder, **options)
    trainer.fit(module, datamodule=data)
    return module.recorded


@pytest.fixture
def fitted(tmp_path):
    data = Toy()
    return data, fit(Recorder(), data, tmp_path)


def rows(loader):
    return torch.cat([batch.images for batch in loader]).flatten(1).tolist()


def test_training_batches_have_views_of_pretraining_images(fitted):
    data, recorded = fitted
    assert [epoch for epoch, _ in recorded["train"]] == [0, 0, 0, 1, 1, 1]
    for epoch, batch in recorded["train"]:
        assert torch.equal(batch.images, data.split("pretrain").images[batch.indices])
        assert torch.equal(batch.views, VIEWS(batch.images, batch.indices, seed=3, epoch=epoch))
    for epoch in (0, 1):
        order = torch.cat([batch.indices for batch_epoch, batch in recorded["train"] if batch_epoch == epoch])
        assert len(order.unique()) == len(order) == 48  # of 50, in full batches
    first, second = (
        torch.cat([b.indices for batch_epoch, b in recorded["train"] if batch_epoch == epoch])
        for epoch in (0, 1)
    )
    assert not torch.equal(first, second)


def test_progressive_resizing_applies_only_to_early_training_epochs(tmp_path):
    recorded = fit(Recorder(), Toy(progressive_resizing={1: 8}), tmp_path)
    for epoch, batch in recorded["train"]:
        views = dataclasses.replace(VIEWS, size=8) if epoch == 0 else VIEWS
        assert torch.equal(batch.views, views(batch.images, batch.indices, seed=3, epoch=epoch))
    assert {batch.images.shape[-1] for _, batch in recorded["queries"]} == {VIEWS.size}


@pytest.mark.parametrize("sizes", [{0: 8}, {3: 0}, {3: 5000}])
def test_invalid_progressive_resizing_raises_input_error(sizes):
    with pytest.raises(InputError, match="progressive_resizing must map numbers of epochs to sides"):
        Toy(progressive_resizing=sizes)


def test_views_are_deferred_to_method_until_next_setup(tmp_path):
    class Deferring(Recorder):
        def on_train_start(self):
            self.views = data.defer_views(self.device)

        def training_step(self, batch, batch_idx):
            assert batch.views is None
            return super().training_step(self.views(batch), batch_idx)

    data = Toy()
    for module, epochs in ((Deferring(), 2), (Recorder(), 1)):
        recorded = fit(module, data, tmp_path, epochs, limit_val_batches=0)["train"]
        assert len(recorded) == 3 * epochs
        for epoch, batch in recorded:
            expected = VIEWS(batch.images, batch.indices, seed=3, epoch=epoch)
            assert torch.equal(batch.views, expected)


def test_validation_has_plain_images_and_same_query_views_every_epoch(fitted):
    data, recorded = fitted
    queries, bank = data.val_dataloader()
    for name, loader in (("bank", bank), ("queries", queries)):
        plain = VIEWS.plain(loader.data.images)
        for epoch in (0, 1):
            epoch_batches = [batch for batch_epoch, batch in recorded[name] if batch_epoch == epoch]
            assert torch.equal(torch.cat([batch.images for batch in epoch_batches]), plain)
            assert torch.equal(torch.cat([batch.labels for batch in epoch_batches]), loader.data.labels)
    assert all(batch.views is None for _, batch in recorded["bank"])
    pixels, indices = queries.data.images, torch.arange(len(queries.data))
    expected = VIEWS(pixels, indices, seed=fold(3, Stream.QUERIES), epoch=0)
    for epoch in (0, 1):
        pairs = [batch.views.chunk(2) for batch_epoch, batch in recorded["queries"] if batch_epoch == epoch]
        assert torch.allclose(torch.cat([first for first, _ in pairs]), expected[: len(indices)], atol=1e-5)
        assert torch.allclose(torch.cat([second for _, second in pairs]), expected[len(indices) :], atol=1e-5)
    assert not torch.allclose(expected, VIEWS(pixels, indices, seed=3, epoch=0), atol=0.1)


def test_validation_on_train_holds_out_labelled_rows():
    data = Toy()
    train = data.split("train")
    queries, bank = data.val_dataloader()
    assert len(queries.data) == 3  # a tenth of 30 labelled rows
    assert torch.equal(queries.data.images, train.select(train.labelled).images[9::10])
    labelled = train.select(train.labelled).images.flatten(1).tolist()
    assert sorted(rows(bank) + rows(queries)) == sorted(labelled)


def test_pretraining_has_no_labels_of_queries():
    data = Toy()
    labels, heldout = data.labels.clone(), data.labels.clone()
    rows = (labels >= 0).nonzero()[:, 0][data.heldout(30)]
    heldout[rows] = -1
    trained = data.train_dataloader().data
    assert torch.equal(trained.labels, torch.cat([heldout, torch.full((10,), -1)]))
    assert torch.equal(trained.images, data.split("pretrain").images)  # queries are trained on
    assert torch.equal(data.val_dataloader()[0].data.labels, labels[rows])
    whole = Toy(val="test").train_dataloader().data
    assert torch.equal(whole.labels, torch.cat([labels, torch.full((10,), -1)]))


def test_pretraining_that_does_not_match_train_has_no_labels():
    class Shuffled(Toy):
        def read(self, split):
            images = super().read(split)
            return images.select(torch.arange(len(images)).flip(0)) if split == "pretrain" else images

    assert not Shuffled().train_dataloader().data.labelled.any()
    assert Shuffled(val="test").train_dataloader().data.labelled.any()


def test_queries_have_every_class_if_labels_repeat_with_their_period():
    queries, bank = Toy(labels=torch.arange(40) % 2).val_dataloader()
    assert sorted(queries.data.labels.tolist()) == [0, 0, 1, 1]
    assert sorted(bank.data.labels.tolist()) == [0] * 18 + [1] * 18


def test_validation_on_test_uses_all_labelled_train_rows():
    data = Toy(val="test")
    queries, bank = data.val_dataloader()
    assert torch.equal(bank.data.labels, torch.arange(40).remainder(4)[torch.arange(40) % 4 > 0] - 1)
    assert torch.equal(queries.data.images, data.split("test").images)


@pytest.mark.parametrize(("share", "expected"), [(0.1, [9]), (0.5, [1, 3, 5, 7, 9]), (0.3, [3, 6, 9])])
def test_heldout_rows_are_evenly_spaced(share, expected):
    assert Toy(val_share=share).heldout(10).nonzero().flatten().tolist() == expected


@pytest.mark.parametrize("val", ["train", "test"])
def test_unlabelled_data_has_queries_but_no_bank(val):
    data = Toy(labels=torch.full((40,), -1), val=val)
    (queries,) = data.val_dataloader()
    expected = data.split("train").images[9::10] if val == "train" else data.split("test").images
    assert torch.equal(queries.data.images, expected)
    assert len(data.train_dataloader()) == 3


def test_too_few_labels_for_validation_raise_input_error():
    labels = torch.full((40,), -1)
    labels[:5] = 0
    with pytest.raises(InputError, match=r"val_share 0\.1 leaves 0 queries and 5 labelled bank images"):
        Toy(labels=labels).val_dataloader()


class Few(Toy):
    few_labels = 31  # one more than there are


class Unlabelled(Recorder):
    reads_labels = False


class Probe(pl.Callback):
    reads_labels = True


@pytest.mark.parametrize(
    ("data", "module", "callbacks", "alone"),
    [
        (Few(), Unlabelled(), [], True),
        (Toy(val="leave_one_out"), Unlabelled(), [], True),
        (Toy(), Unlabelled(), [], False),
        (Few(val="train"), Unlabelled(), [], False),
        (Few(), Recorder(), [], False),  # does not state that it reads no labels
        (Few(), Unlabelled(), [Probe()], False),
    ],
    ids=["few labels", "chosen", "more labels", "held out", "unknown module", "callback"],
)
def test_queries_left_out_one_by_one_are_all_labelled_images_and_train_without_labels(
    tmp_path, data, module, callbacks, alone
):
    recorded = fit(module, data, tmp_path, epochs=1, callbacks=callbacks)
    labels = torch.cat([batch.labels for _, batch in recorded["queries"]])
    trained = torch.cat([batch.labels for _, batch in recorded["train"]])
    assert data.leaves_one_out == alone
    assert torch.equal(labels, data.labels[data.labels >= 0]) == alone
    assert bool(recorded["bank"]) != alone
    assert bool((trained >= 0).any()) != alone


def test_leave_one_out_uses_a_validation_split_if_there_is_one():
    class Split(Few):
        def has(self, split):
            return True

    assert not Split().leaves_one_out


def test_leave_one_out_refuses_training_that_reads_labels(tmp_path):
    with pytest.raises(InputError, match=r"reads labels, but --data\.val leave_one_out hides them"):
        fit(Unlabelled(), Toy(val="leave_one_out"), tmp_path, callbacks=[Probe()])


def test_joined_batches_of_two_processes_match_single_process():
    shares = []
    for rank in (0, 1):
        data = Toy(batch_size=8)
        strategy = SimpleNamespace(root_device=torch.device("cpu"))
        progress = SimpleNamespace(current=SimpleNamespace(ready=0))
        loops = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
        data.trainer = SimpleNamespace(
            global_rank=rank, world_size=2, strategy=strategy, fit_loop=loops, training=True
        )
        shares.append([batch.indices for batch in data.train_dataloader()])
    joined = [torch.cat(share).tolist() for share in zip(*shares, strict=True)]
    assert joined == [batch.indices.tolist() for batch in Toy().train_dataloader()]


@pytest.mark.parametrize(
    ("stage", "val", "expected"),
    [
        ("fit", "train", ["pretrain", "train"]),
        ("fit", "test", ["pretrain", "train", "test"]),
        ("validate", "train", ["train"]),
    ],
)
def test_setup_reads_only_splits_of_its_stage_once(stage, val, expected):
    data = Toy(val=val)
    data.setup(stage)
    data.setup(stage)
    assert data.reads == expected


def test_seed_defaults_to_torch_seed():
    torch.manual_seed(77)
    assert Toy(seed=None).seed == 77
    assert Toy(seed=5).seed == 5


def test_classes_come_from_train_split():
    assert Toy().classes == ("a", "b", "c")
    assert Toy().num_classes == 3


def test_str_does_not_read_data():
    data = Toy()
    assert "size=6" in str(data)
    assert not data.reads


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 0), ("eval_batch_size", -1), ("val", "valid"), ("val_share", 0.0), ("val_share", 0.6)],
)
def test_option_out_of_range_raises_error_naming_it(name, value):
    with pytest.raises(InputError, match=rf"^{name} must .*{value!r}$"):
        Toy(**{name: value})


@pytest.mark.parametrize(("kind", "default"), [(Digits, Digits().views), (STL10, STL10().views)])
def test_view_options_on_command_line_keep_other_defaults(kind, default):
    arguments = [f"--data={kind.__name__}", "--data.views.size=20", "--data.views.blur=0.5"]
    options = {"subclass_mode_data": True, "run": False, "save_config_callback": None}
    data = LightningCLI(Recorder, ImageData, args=arguments, **options).datamodule
    assert isinstance(data, kind)
    assert data.views == Views(**vars(default) | {"size": 20, "blur": 0.5})


class NoTest(Toy):
    """Variant of Toy without a test split, whose pretrain split is its train split."""

    def has(self, split):
        return split in ("pretrain", "train")

    def read(self, split):
        assert split == "train"
        return super().read(split)


def test_test_share_holds_out_same_labelled_images_for_every_seed(caplog):
    caplog.set_level("INFO")
    data, other = NoTest(test_share=0.2, seed=3), NoTest(test_share=0.2, seed=4)
    train, test = data.split("train"), data.split("test")
    everything = NoTest().split("train").images
    assert (len(train), len(test)) == (40 - 6, 6)  # 30 of 40 images have a label
    assert test.labelled.all()
    rows = torch.cat((train.rows, test.rows))
    assert sorted(rows.tolist()) == list(range(40))
    torch.testing.assert_close(torch.cat((train.images, test.images)), everything[rows])
    assert data.split("pretrain") is train
    assert other.split("test").rows.tolist() == test.rows.tolist()
    assert (data.eval_split, data.val_split) == ("test", "train")
    queries, bank = data.val_dataloader()
    assert not {*queries.data.rows.tolist(), *bank.data.rows.tolist()} & {*test.rows.tolist()}
    validated = NoTest(test_share=0.2, val="test")
    validated.setup("fit")
    assert validated.val_dataloader()[0].data.rows.tolist() == test.rows.tolist()
    assert "6 of 30 labelled train images are held out as the test split" in caplog.text


def test_invalid_or_unusable_test_share_raises_input_error():
    with pytest.raises(InputError, match=r"test_share must be above 0 and at most 0\.5, got 0\.6"):
        NoTest(test_share=0.6)
    with pytest.raises(InputError, match="Toy has a test split; leave out test_share"):
        Toy(test_share=0.1).split("train")
    with pytest.raises(InputError, match=r"test_share 0\.1 selects none of 0 labelled train images"):
        NoTest(labels=torch.full((40,), -1), test_share=0.1).split("test")


def test_channel_mismatch_with_views_raises_input_error():
    data = Toy()
    data.views = Views(mean=(0.5,) * 4, std=(0.5,) * 4, saturation=0, hue=0, grayscale=0)
    with pytest.raises(InputError, match=r"the images have 3 channels, but views\.mean has 4 numbers"):
        data.split("train")
