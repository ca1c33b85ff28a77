"""Tests of ``in_chunks``: the gradients of the whole batch in less memory."""

import pytest
import torch
from torch import nn

from ssl_vision.objectives import DCL, MACL, DualTemperature, InfoNCE, in_chunks


def network(norm=None, dropout=0.0):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), *([norm] if norm else []), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 5)]
    return nn.Sequential(*layers).double()


def batch(n=20):
    g = torch.Generator().manual_seed(1)
    x1 = torch.randn(n, 6, generator=g, dtype=torch.float64)
    return x1, x1 + 0.5 * torch.randn(n, 6, generator=g, dtype=torch.float64)


def gradients(net, loss):
    net.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("objective", [InfoNCE(), DCL(pairs="cross"), MACL(), DualTemperature()], ids=str)
@pytest.mark.parametrize("size", [1, 7, 20, 99])
def test_chunked_loss_and_gradients_equal_whole_batch(objective, size):
    net, (x1, x2) = network(nn.LayerNorm(16)), batch()
    whole = objective(net(x1), net(x2))
    chunked = objective(in_chunks(net, x1, size=size), in_chunks(net, x2, size=size))
    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=1e-12)
    for gradient, expected in zip(gradients(net, chunked), gradients(net, whole), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


def test_chunked_gradients_differ_from_accumulated_small_batches():
    net, (x1, x2) = network(), batch()
    small = [InfoNCE()(net(a), net(b)) for a, b in zip(x1.split(5), x2.split(5), strict=True)]
    chunked = InfoNCE()(in_chunks(net, x1, size=5), in_chunks(net, x2, size=5))
    accumulated, of_chunks = gradients(net, sum(small) / 4), gradients(net, chunked)
    assert not torch.allclose(accumulated[0], of_chunks[0], rtol=0.1)


def test_batchnorm_normalizes_per_chunk_and_counts_each_once():
    chunked, plain = (network(nn.BatchNorm1d(16)) for _ in range(2))
    x1, x2 = batch()

    def view_gradients(net, call):
        return gradients(net, InfoNCE()(call(x1), call(x2)))

    chunked_gradients = view_gradients(chunked, lambda x: in_chunks(chunked, x, size=5))
    plain_gradients = view_gradients(plain, lambda x: torch.cat([plain(part) for part in x.split(5)]))
    for actual, expected in zip(chunked_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    for (name, actual), expected in zip(
        chunked.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        assert torch.equal(actual, expected), name
    assert (chunked[1].momentum, int(chunked[1].num_batches_tracked)) == (0.1, 8)


def test_synchronised_batchnorm_counts_each_chunk_once():
    # Without a process group, it computes the same as BatchNorm.
    expected = network(nn.BatchNorm1d(16))
    actual = nn.SyncBatchNorm.convert_sync_batchnorm(network(nn.BatchNorm1d(16)))
    rows = batch()[0]
    losses = [in_chunks(net, rows, size=5).square().sum() for net in (actual, expected)]
    for gradient, other in zip(gradients(actual, losses[0]), gradients(expected, losses[1]), strict=True):
        torch.testing.assert_close(gradient, other)
    torch.testing.assert_close(actual.state_dict(), expected.state_dict())


@pytest.mark.parametrize(("rows", "size", "lengths"), [(8, 7, [4, 4]), (20, 7, [7, 7, 6]), (5, 9, [5])])
def test_chunks_are_about_equally_long(rows, size, lengths):
    seen = []
    in_chunks(
        nn.Identity(), torch.zeros(rows, 2), size=size, call=lambda part: (seen.append(len(part)), part)[1]
    )
    assert seen == lengths


def test_dropout_masks_are_equal_in_both_passes():
    net, (x1, x2) = network(dropout=0.5), batch()
    torch.manual_seed(3)
    chunked_gradients = gradients(net, InfoNCE()(in_chunks(net, x1, size=20), in_chunks(net, x2, size=20)))
    torch.manual_seed(3)
    plain_gradients = gradients(net, InfoNCE()(net(x1), net(x2)))
    for actual, expected in zip(chunked_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_in_chunks_saves_under_a_quarter_of_the_activations():
    net, (x1, _) = network(), batch(4096)
    saved_elements = 0

    def count(tensor):
        nonlocal saved_elements
        saved_elements += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        net(x1)
        whole, saved_elements = saved_elements, 0
        in_chunks(net, x1, size=64)
    assert saved_elements < whole / 4


def test_in_chunks_supports_several_inputs_and_outputs():
    net, (x1, x2) = network(), batch()
    z1, z2 = in_chunks(net, x1, x2, size=6, call=lambda a, b: (net(a), net(b)))
    torch.testing.assert_close((z1, z2), (net(x1), net(x2)))
    both = in_chunks(net, x1, x2, size=6, call=lambda a, b: torch.stack([net(a), net(b)]), dim=1)
    torch.testing.assert_close(both, torch.stack([z1, z2]))


def test_invalid_size_or_row_counts_raise_value_error():
    net, (x1, x2) = network(), batch()
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        in_chunks(net, x1, size=0)
    with pytest.raises(ValueError, match=r"same number of rows, got \[20, 3\]"):
        in_chunks(net, x1, x2[:3], size=5)
