"""Tests of MoCo, SimMoCo and SimCo against plain loops and lightly's memory bank, and of resumed runs."""

import copy
import math
import signal

import pytest
import torch
import torch.nn.functional as F
from lightly.loss import NTXentLoss
from settings import UNVALIDATED
from torch import nn

from ssl_vision import objectives as o
from ssl_vision.data import Batch
from ssl_vision.encoders import ResNet
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.methods import MoCo, MoCoV3, SimCo, SimMoCo
from ssl_vision.methods.moco import KeyQueue
from ssl_vision.runs.checkpoint import read_checkpoint

N = 6


def small(cls, **options):
    return cls(
        **({"encoder": lambda: ResNet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0} | options)
    )


def batches(count=3, dtype=torch.float32):
    views = torch.randn(
        count, 2 * N, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(dtype)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    return [Batch(each[:N], labels, torch.arange(N), each) for each in views]


def negatives_of(name, keys, queue, i):
    return queue if name == "MoCo" else torch.cat([keys[:i], keys[i + 1 :]])


def direct_loss(name, queries, keys, queue, tau):
    """Return InfoNCE or dual temperature of one direction, computed one anchor at a time."""
    losses = []
    for i, query in enumerate(queries):
        similarities = torch.stack([query @ k for k in [keys[i], *negatives_of(name, keys, queue, i)]])
        log_share = F.log_softmax(similarities / tau, dim=0)[0]
        if name == "MoCo":
            losses.append(-log_share)
            continue
        outer = 1 - F.softmax(similarities, dim=0)[0]
        losses.append(-(outer / (1 - log_share.exp())).detach() * log_share)
    return torch.stack(losses).mean()


def test_momentum_network_of_bfloat16_network_moves_as_in_float32():
    moved = []
    for dtype in (torch.float32, torch.bfloat16):
        method = small(SimMoCo, momentum=0.99).to(dtype)
        for weight in (*method.backbone.parameters(), *method.head.parameters()):
            torch.nn.init.constant_(weight, 1.0)
        for slow in (*method.momentum_backbone.parameters(), *method.momentum_head.parameters()):
            torch.nn.init.constant_(slow, 0.0)
        for _ in range(100):
            method.after_update()
        moved.append(method.momentum_backbone.conv1.weight.clone())
        assert method.double().momentum_backbone.conv1.weight.dtype == torch.float64
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-6, atol=0)
    assert float(moved[1].mean()) == pytest.approx(1 - 0.99**100, rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"symmetric": True, "head_batch_norm": "all"}])
def test_bfloat16_network_has_keys_of_its_momentum_network(options):
    exact, half = (small(SimMoCo, **options).to(dtype).eval() for dtype in (torch.float32, torch.bfloat16))
    (batch,) = batches(1)
    expected, images = exact.keys(batch.views[:N]), batch.views.bfloat16()
    key = half.keys(images[:N])
    assert key.dtype == half.embed_views(images[:N], 1).embeddings.dtype == torch.bfloat16
    torch.testing.assert_close(key.float(), expected, rtol=0.1, atol=0.1)
    half.loss(Batch(images, batch.labels, batch.indices, images)).backward()


@pytest.mark.parametrize(
    ("cls", "symmetric"), [(MoCo, False), (MoCo, True), (SimMoCo, False), (SimMoCo, True), (MoCoV3, True)]
)
def test_three_steps_match_plain_loop(cls, symmetric):
    """Networks, momentum networks and the queue are compared in float64."""
    v3 = {"objective": o.DualTemperature(), "momentum_schedule": "constant", "bn": "joint"}
    options = {MoCo: {"queue_size": 10}, MoCoV3: v3}.get(cls, {})
    method = small(cls, momentum=0.9, symmetric=symmetric, **options).double()
    backbone, head, predictor = (copy.deepcopy(m) for m in (method.backbone, method.head, method.predictor))
    slow_backbone, slow_head = copy.deepcopy(backbone), copy.deepcopy(head)
    queue = list(F.normalize(method.queue.keys, dim=1)) if cls is MoCo else []
    optimizers = [
        torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05),
        torch.optim.SGD(nn.ModuleList([backbone, head, predictor]).parameters(), lr=0.05),
    ]
    for batch in batches(dtype=torch.float64):
        views = batch.views.chunk(2)
        loss = method.loss(batch)
        optimizers[0].zero_grad()
        loss.backward()
        method.after_backward()
        optimizers[0].step()
        method.after_update()

        with torch.no_grad():
            # The key of the second view comes first, as in a single direction.
            key2, key1 = (slow_head(slow_backbone(view)) if view is not None else None
                          for view in (views[1], views[0] if symmetric else None))  # fmt: skip
        if symmetric:
            query1, query2 = (F.normalize(predictor(z), dim=1) for z in head(backbone(batch.views)).chunk(2))
            key1, key2 = F.normalize(key1, dim=1), F.normalize(key2, dim=1)
            expected = (
                direct_loss(cls.__name__, query1, key2, queue, 0.1)
                + direct_loss(cls.__name__, query2, key1, queue, 0.1)
            ) / 2
            queue = [*queue, *key1, *key2][-10:] if queue else []
        else:
            query1, key2 = F.normalize(head(backbone(views[0])), dim=1), F.normalize(key2, dim=1)
            expected = direct_loss(cls.__name__, query1, key2, queue, 0.1)
            queue = [*queue, *key2][-10:] if queue else []
        optimizers[1].zero_grad()
        expected.backward()
        optimizers[1].step()
        pairs = zip(
            [*slow_backbone.parameters(), *slow_head.parameters()],
            [*backbone.parameters(), *head.parameters()],
            strict=True,
        )
        for slow, fast in pairs:
            slow.data = 0.9 * slow.data + 0.1 * fast.data
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    for network, reference in (
        (method.backbone, backbone), (method.head, head), (method.predictor, predictor),
        (method.momentum_backbone, slow_backbone), (method.momentum_head, slow_head),
    ):  # fmt: skip
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-8, atol=1e-10, msg=name)
    if cls is MoCo:
        oldest = int(method.queue.oldest)
        in_order = torch.cat([method.queue.keys[oldest:], method.queue.keys[:oldest]])
        torch.testing.assert_close(in_order, torch.stack(queue), rtol=1e-8, atol=1e-10)


def test_moco_loss_and_queue_match_lightly_memory_bank():
    """lightly's bank drops keys at its end unless the batch size divides the bank size, as it does here."""
    method = small(MoCo, queue_size=2 * N, objective=o.InfoNCE(temperature=0.2, pairs="queue"))
    criterion = NTXentLoss(temperature=0.2, memory_bank_size=(2 * N, 8))
    criterion.memory_bank.bank = method.queue.keys.clone()
    for batch in batches(5):
        first, second = batch.views.chunk(2)
        (query,), key = method.embed_views(first, 1).embeddings, method.keys(second)
        loss = method.objective(query, key, negatives=method.queue.keys)
        torch.testing.assert_close(loss, criterion(query, key))
        method.queue.enqueue(key)
        assert torch.allclose(method.queue.keys, criterion.memory_bank.bank, atol=1e-6)


def test_keys_are_chunked_like_queries():
    """A last chunk of one image would make BatchNorm fail."""
    method = small(SimMoCo, chunk_size=5).train()
    sizes = []
    method.momentum_backbone.register_forward_hook(lambda module, images, output: sizes.append(len(output)))
    method.backbone.register_forward_hook(lambda module, images, output: sizes.append(len(output)))
    method.loss(batches(1)[0]).backward()
    assert set(sizes) == {N // 2}


@pytest.mark.parametrize("size", [1, 4, 5, 7, 20])
def test_queue_holds_latest_keys_in_order(size):
    queue = KeyQueue(size, 3)
    expected = list(queue.keys.clone())
    for count in (2, 3, 7, 1, 4):
        keys = torch.randn(count, 3)
        queue.enqueue(2 * keys)
        expected = [*expected, *F.normalize(keys, dim=1)][-size:]
        oldest = int(queue.oldest)
        in_order = torch.cat([queue.keys[oldest:], queue.keys[:oldest]])
        torch.testing.assert_close(in_order, torch.stack(expected))


def test_simco_compares_views_separately_without_negatives_of_own_view():
    method = small(SimCo, objective=o.InfoNCE())
    assert (method.bn, method.objective.pairs) == ("per_view", "cross")


def test_nonfinite_keys_are_not_queued():
    queue = KeyQueue(4, 3)
    before = queue.keys.clone()
    keys = torch.tensor([[1.0, 0, 0], [torch.nan, 0, 0], [0, torch.inf, 0]])
    queue.enqueue(keys)
    assert torch.equal(queue.keys, torch.cat([keys[:1], before[1:]]))
    assert int(queue.oldest) == 3


def test_initial_weights_do_not_depend_on_method():
    methods = [small(cls) for cls in (MoCo, SimMoCo, SimCo)]
    first = methods[0].backbone.state_dict()
    for method in methods[1:]:
        assert all(torch.equal(value, method.backbone.state_dict()[name]) for name, value in first.items())
    assert not torch.equal(small(MoCo, seed=1).queue.keys, methods[0].queue.keys)


def test_simco_loss_is_mean_dual_temperature_of_both_directions():
    method = small(SimCo)
    (batch,) = batches(1)
    q1, q2 = (method.head(method.backbone(view)) for view in batch.views.chunk(2))
    q1, q2 = F.normalize(q1, dim=1), F.normalize(q2, dim=1)
    expected = (direct_loss("SimCo", q1, q2, [], 0.1) + direct_loss("SimCo", q2, q1, [], 0.1)) / 2
    torch.testing.assert_close(method.loss(batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", [MoCo, SimMoCo])
@pytest.mark.parametrize("symmetric", [False, True])
def test_chunks_do_not_change_gradients_with_fixed_batchnorm(cls, symmetric):
    (batch,) = batches(1, dtype=torch.float64)
    gradients = []
    for size in (None, 4):
        method = small(cls, chunk_size=size, symmetric=symmetric).double().eval()
        method.loss(batch).backward()
        gradients.append([p.grad for p in method.parameters() if p.requires_grad and p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: small(MoCo, objective=o.InfoNCE(pairs="both")),
            "InfoNCE in MoCo: pairs .* 'queue', got 'both'",
        ),
        (lambda: small(SimMoCo, objective=o.SupCon()), "SupCon in SimMoCo: .* 'keys', 'queue', got 'both'"),
        (lambda: small(SimCo, objective=o.DCL(pairs="both")), "DCL in SimCo: .* 'cross', 'keys', got 'both'"),
        (lambda: small(MoCo, objective=o.BarlowTwins()), "uses a queue, unlike BarlowTwins"),
        (lambda: small(SimMoCo, objective=o.InfoNCE(pairs="queue")), "which SimMoCo does not have"),
        (lambda: small(SimMoCo, objective=o.RECLAIM()), "needs .*, which SimMoCo does not have"),
        (lambda: small(MoCo, queue_size=0), "queue_size must be at least 1 and at most"),
        (lambda: small(MoCo, momentum=1.5), "momentum must be at least 0 and at most 1, got 1.5"),
        (lambda: small(SimMoCo, momentum_schedule="linear"), "'constant', 'cosine', got 'linear'"),
    ],
)
def test_unsupported_options_raise_input_error(make, message):
    with pytest.raises(InputError, match=message):
        make()


def fit(name, *options):
    assert main(["fit", "--runs_dir=runs", f"--name={name}", *UNVALIDATED, *options]) == 0
    return read_checkpoint(f"runs/{name}").state


MOCO = ["--model=MoCo", "--model.objective=MACL", "--model.queue_size=40"]
CASES = {
    "moco": [*MOCO, "--model.symmetric=true", "--model.optimizer.schedule=cosine"],
    "moco, cosine momentum, accumulated": [
        *MOCO, "--model.momentum_schedule=cosine", "--trainer.accumulate_grad_batches=2",
    ],
    "simmoco": ["--model=SimMoCo", "--model.objective=DualTemperature"],
    "moco v3": ["--model=MoCoV3", "--online_probe=true"],
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case == "simmoco" else []) for case in CASES]
)
def test_run_interrupted_within_epoch_resumes_exactly(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uninterrupted = fit("whole", *CASES[case])
    options = [
        *CASES[case],
        "--trainer.callbacks+=interrupt_once.InterruptOnce",
        "--trainer.callbacks.marker=interrupted",
        "--trainer.callbacks.batch=6",  # in the second of two epochs of four batches
    ]
    assert main(["fit", "--runs_dir=runs", "--name=part", *UNVALIDATED, *options]) == 128 + signal.SIGTERM
    resumed = fit("part", *options, "--ckpt_path=last")
    assert [name for name, value in uninterrupted.items() if not torch.equal(resumed[name], value)] == []


def test_cosine_momentum_follows_schedule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    momenta = []
    original = SimMoCo._momentum_of_step

    def recording(self):
        momenta.append(original(self))
        return momenta[-1]

    monkeypatch.setattr(SimMoCo, "_momentum_of_step", recording)
    fit("run", "--model=SimMoCo", "--model.momentum_schedule=cosine", "--model.momentum=0.9")
    assert momenta == pytest.approx([1 - 0.1 * (math.cos(math.pi * t / 8) + 1) / 2 for t in range(8)])


def test_initial_checkpoint_sets_momentum_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = fit("first", "--trainer.max_epochs=1")
    options = ["--model=SimMoCo", "--model.momentum=1.0", "--initial_checkpoint=runs/first"]
    second = fit("second", *options, "--trainer.max_epochs=1", "--seed_everything=5")
    for name, value in first.items():
        if name.startswith(("backbone.", "head.")) and name.endswith("weight"):
            assert torch.equal(second[f"momentum_{name}"], value)
