import pytest
import torch

from ssl_vision.data.images import Images
from ssl_vision.data.loading.loader import Batches
from ssl_vision.errors import InputError


def data(count):
    pixels = torch.arange(count).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    return Images(pixels.contiguous(), torch.arange(count) % 3, ("a", "b", "c"))


def loader(count, **options):
    return Batches(data(count), **{"batch_size": 8, "shuffle": True, "drop_last": True, "seed": 0} | options)


def indices(batches, epoch=0):
    batches.sampler.set_epoch(epoch)
    return [batch.indices.tolist() for batch in batches]


def flat(lists):
    return [item for items in lists for item in items]


def test_batch_images_and_labels_match_batch_indices():
    for batch in loader(50):
        assert batch.images.dtype == torch.uint8
        assert torch.equal(batch.images[:, 0, 0, 0].long(), batch.indices)
        assert torch.equal(batch.labels, batch.indices % 3)
        assert batch.views is None


def test_epoch_has_full_batches_without_repeated_rows():
    batches = indices(loader(50))
    assert [len(batch) for batch in batches] == [8] * 6
    assert len(set(flat(batches))) == 48


def test_order_depends_only_on_seed_and_epoch():
    first = indices(loader(50), epoch=3)
    torch.manual_seed(123)
    again = loader(50)
    indices(again, epoch=1)
    assert indices(again, epoch=3) == first
    assert indices(again, epoch=4) != first
    assert indices(loader(50, seed=1), epoch=3) != first


def test_shuffling_is_uniform_over_positions():
    positions = torch.stack([torch.tensor(flat(indices(loader(8), epoch=epoch))) for epoch in range(800)])
    counts = torch.stack([(positions == row).sum(0) for row in range(8)])
    assert ((counts - 100.0) ** 2 / 100).sum() < 90  # chi-square on 49 degrees of freedom, p = 3e-4


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_world_size_sees_the_same_global_batches(world_size):
    shares = [
        indices(loader(100, batch_size=16 // world_size, rank=rank, world_size=world_size), epoch=5)
        for rank in range(world_size)
    ]
    joined = [flat(step) for step in zip(*shares, strict=True)]
    assert joined == indices(loader(100, batch_size=16), epoch=5)


@pytest.mark.parametrize("count", [3, 4, 7, 16, 17, 18, 31, 32, 33, 100])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_has_each_row_once_and_equal_steps_on_all_ranks(count, world_size):
    options = {"batch_size": 5, "shuffle": False, "drop_last": False, "world_size": world_size}
    ranks = [loader(count, rank=rank, **options) for rank in range(world_size)]
    shares = [indices(rank) for rank in ranks]
    assert sorted(flat(flat(shares))) == list(range(count))
    assert {len(share) for share in shares} == {len(rank) for rank in ranks} == {len(ranks[0])}
    assert all(1 <= len(batch) <= 6 for share in shares for batch in share)
    if world_size == 1:
        assert flat(shares[0]) == list(range(count))


@pytest.mark.parametrize("step", [0, 1, 4, 6])
def test_state_dict_resumes_its_own_epoch_and_no_other(step):
    uninterrupted, interrupted, resumed = loader(50), loader(50), loader(50)
    interrupted.sampler.set_epoch(3)
    for _ in zip(range(step), interrupted, strict=False):
        pass
    assert interrupted.state_dict() == {"epoch": 3 if step else 0, "step": step}
    resumed.load_state_dict(interrupted.state_dict())
    assert len(resumed) == 6
    assert indices(resumed, epoch=3) == indices(uninterrupted, epoch=3)[step:]
    assert resumed.state_dict() == {"epoch": 3, "step": 6}
    assert indices(resumed, epoch=3) == indices(uninterrupted, epoch=3)
    resumed.load_state_dict(interrupted.state_dict())
    assert indices(resumed, epoch=4) == indices(uninterrupted, epoch=4)


@pytest.mark.parametrize("done", [0, 2, 6])
def test_epoch_starts_after_completed_batches(done):
    whole = indices(loader(50), epoch=3)
    batches = loader(50, completed=lambda: done)
    batches.load_state_dict({"epoch": 3, "step": 1})  # the completed count takes precedence over the state
    assert indices(batches, epoch=3) == whole[done:]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("count", "world_size"), [(48, 2), (47, 2), (50, 2), (47, 1)])
def test_equal_shares_is_true_only_if_all_ranks_have_equal_batches(count, world_size, drop_last):
    options = {"drop_last": drop_last, "world_size": world_size}
    ranks = [loader(count, rank=rank, **options) for rank in range(world_size)]
    sizes = [[len(step) for step in indices(rank)] for rank in ranks]
    assert all(rank.equal_shares == (sizes[0] == sizes[-1]) for rank in ranks)


@pytest.mark.parametrize("drop_last", [True, False])
def test_length_is_the_number_of_batches(drop_last):
    batches = loader(50, drop_last=drop_last)
    assert len(batches) == len(list(batches)) == (6 if drop_last else 7)


def test_too_few_images_or_zero_batch_size_raises_input_error():
    with pytest.raises(InputError, match=r"batch_size 8 .* 7 images"):
        loader(7)
    with pytest.raises(InputError, match=r"batch_size 4 .* 7 images"):
        loader(7, batch_size=4, world_size=2)
    with pytest.raises(InputError, match=r"batch_size must be at least 1, got 0"):
        loader(7, batch_size=0)
    with pytest.raises(InputError, match="2 process"):
        loader(1, drop_last=False, world_size=2)
