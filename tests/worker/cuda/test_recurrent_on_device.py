"""Models with recurrent layers by the CUDA kernels: the reference's logits, and the same bits in
any company, any chunks, after a failure, and from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from penstock.model.prepared_model import WeightFiles
from penstock.protocol.to_worker import SlotWork
from penstock_worker.forward import triton
from penstock_worker.forward.queued import TritonForward
from penstock_worker.layers.step import Step
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import ALONE, Ranks
from tests.interpreted_triton import DEVICE, one_kernel_at_a_time
from tests.worker.cpu_model import CPUModel
from tests.worker.models.recurrent_cases import BITS_ON_DEVICE, ON_DEVICE, RANKS_ON_DEVICE
from tests.worker.models.recurrent_runs import BLOCK, CPURun, RecurrentRun
from tests.worker.models.test_recurrent_models import POSITIONS, read
from tests.worker.parallel.together import Formed
from tests.worker.random_weights import RandomWeights

pytestmark = pytest.mark.timeout(300)

NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")
MINE, OTHER = [*range(7, 28)], [*range(5, 30)]


@pytest.fixture(autouse=True)
def _random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "open_weights", lambda *_, **__: RandomWeights(device=DEVICE))


def run(case: str, ranks: Ranks = ALONE) -> CPURun:
    model = CPUModel(read(case), NO_FILES, "float32", backend="triton", positions=POSITIONS)
    return CPURun(model, 2, every=BLOCK, ranks=ranks)


def on_host(case: str) -> RecurrentRun:
    return RecurrentRun(DecoderModel(read(case), RandomWeights(), POSITIONS), 2)


@pytest.mark.parametrize("case", ON_DEVICE)
def test_logits_are_the_references(case: str) -> None:
    """A prompt in two chunks, beside another one, and a decode of both."""
    ours = run(case)
    true = on_host(case)
    for work in (
        [(0, MINE[:5]), (1, OTHER[:3])],
        [(1, OTHER[3:4]), (0, MINE[5:9])],
        [(0, [9]), (1, [8])],
    ):
        for found, wanted in zip(ours.step(work), true.step(work), strict=True):
            assert (found.cpu() - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.skipif(DEVICE.type != "cpu", reason="ranks are threads of one process")
@pytest.mark.parametrize("case", RANKS_ON_DEVICE)
def test_two_ranks_compute_the_references_logits(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_kernel_at_a_time(monkeypatch)
    true = on_host(case)
    with Formed(2) as formed:
        runs = dict(zip(formed.ranks, formed.each(lambda ranks: run(case, ranks)), strict=True))
        for work in ([(0, MINE[:4]), (1, OTHER[:2])], [(1, OTHER[2:3]), (0, MINE[4:5])]):
            both = formed.each(lambda ranks, work=work: runs[ranks].step(work))  # type: ignore[misc]
            for ours, other, wanted in zip(*both, true.step(work), strict=True):
                assert torch.equal(ours, other)
                assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("case", BITS_ON_DEVICE)
def test_chunks_of_a_graph_have_the_plain_steps_bits(case: str) -> None:
    """Two prompts, of which one ends within a step, chunks beside a decode, and checkpoints."""

    def launched(*_: object) -> None:
        raise AssertionError("a step's kernels were launched one by one")

    graphs, plain = run(case), run(case)
    caches = []
    for each in (graphs, plain):
        assert isinstance(each.forward, TritonForward)
        caches.append(each.forward.attention.blocks().zero_())
    graphs.forward._eager = launched  # type: ignore[attr-defined]
    plain.forward._graphs = None  # type: ignore[attr-defined]
    for work in (
        [(1, OTHER[:4]), (0, MINE[:12])],
        [(0, MINE[12:13]), (1, OTHER[4:19])],
        [(0, MINE[13:15]), (1, OTHER[19:22])],
    ):
        for ours, wanted in zip(graphs.step(work), plain.step(work), strict=True):
            assert torch.equal(ours, wanted)
    assert caches[0].any()
    assert torch.equal(*caches)


class FailsOnce:
    """In place of a layer."""

    def __init__(self, forward: TritonForward, layer: int) -> None:
        self._layers, self._number = forward._model.layers, layer
        self._layer, self._layers[layer] = self._layers[layer], self

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        self._layers[self._number] = self._layer
        raise RuntimeError("this layer fails")


def in_spite_of(failing: CPURun, layer: int, work: Sequence[tuple[int, list[int]]]) -> list[Tensor]:
    """Computes the works once more, each by itself, as the runner does."""
    assert isinstance(failing.forward, TritonForward)
    FailsOnce(failing.forward, layer)
    # A graph launches the kernels of its layers, and calls none.
    graphs, failing.forward._graphs = failing.forward._graphs, None
    with pytest.raises(RuntimeError, match="this layer fails"):
        failing.step(work)
    failing.forward._graphs = graphs
    failing.states.undo([SlotWork(slot, 0, 0) for slot, _ in work])
    return [failing.step([each])[0] for each in work]


@pytest.mark.parametrize("case", BITS_ON_DEVICE)
def test_bits_are_a_sequences_own(case: str) -> None:
    """Chunks, decodes and a checkpoint within, beside another sequence; steps that fail first."""
    (alone,) = run(case).step([(0, MINE)])
    together = run(case)
    found = [
        together.step([(1, OTHER[:4]), (0, MINE[:6])])[1],
        together.step([(0, MINE[6:7]), (1, OTHER[4:5])])[0],
        in_spite_of(together, 2, [(0, MINE[7:18]), (1, OTHER[5:8])])[0],
        in_spite_of(together, 2, [(1, OTHER[8:9]), (0, MINE[18:19])])[1],
        together.step([(0, MINE[19:])])[0],
    ]
    assert alone.std() > 0
    assert torch.equal(torch.cat(found), alone)
