"""What the card computes while the host computes experts, and that neither reads what the other
hasn't written: on a simulated GPU, which does its work as late as CUDA allows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.recommend.beside_card import BesideCard, ExpertShape, HostFigures, PlacedModel
from penstock.recommend.cards import DEVICES
from penstock_kernels.cpu import library
from penstock_worker.device.side_stream import AtOnceBeside
from penstock_worker.layers import host_experts
from penstock_worker.layers.experts import MixtureOfExperts
from penstock_worker.layers.host_experts import HostExperts, HostLane
from penstock_worker.layers.parts import ExpertsAtOnce
from penstock_worker.layers.streamed_experts import PairsByPlace
from penstock_worker.metrics.hand_over import HandOverCounts
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.tensors import CPU, CUDA
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.test_cpu_experts import MIXTURES, logits, of, placed, with_experts, written
from tests.worker.cuda.test_streamed_experts import NEVER, copying_from, routed

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

GIB = 1 << 30


@pytest.fixture(autouse=True)
def same_instructions() -> Iterator[None]:
    """Loading chooses them for its process."""
    before = library.instruction_set()
    yield
    library.use(before)


class Told(ExpertsAtOnce):
    """LayerExperts that say when they are asked."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def begin(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Callable[[], Tensor]:
        self.heard.append("begin")

        def finish() -> Tensor:
            self.heard.append("finish")
            return 2 * hidden

        return finish


def mixture_of(told: Told, shared: Callable[[Tensor], Tensor]) -> MixtureOfExperts:
    own: Any = shared
    return MixtureOfExperts(told, own, None)


def test_shared_experts_are_computed_while_the_host_computes() -> None:
    told = Told()

    def shared(hidden: Tensor) -> Tensor:
        told.heard.append("shared")
        return hidden

    assert torch.equal(mixture_of(told, shared)(torch.ones(2, 3)), torch.full((2, 3), 3.0))
    assert told.heard == ["begin", "shared", "finish"]


def test_the_host_has_what_it_reads_until_it_is_done() -> None:
    """Also where the card has run out of memory meanwhile."""
    told = Told()

    def shared(hidden: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        mixture_of(told, shared)(torch.ones(2, 3))
    assert told.heard == ["begin", "finish"]


@pytest.mark.parametrize(
    ("case", "sizes"),
    [("gpt-oss", {"num_local_experts": 8}), ("glm45", {})],
    ids=["gpt-oss", "glm45"],
)
@pytest.mark.parametrize("threshold", [3, 1_000_000])
@pytest.mark.parametrize("pace", [None, 1])
def test_a_card_that_is_late_computes_the_same(
    pace: int | None,
    threshold: int,
    case: str,
    sizes: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two layers, one after the other, over more rows than go down at a time. gpt-oss has biases,
    which are copied with the weights, and more experts than two buffers are filled with before the
    host waits."""
    monkeypatch.setattr("penstock_worker.layers.host_experts.MOST_ROWS", 8)
    monkeypatch.setattr("penstock.model.expert_room.BUFFER_BYTES", 1)
    kind, own = MIXTURES[case]
    model = written(tmp_path / "model.gguf", case, kind, {**own, **sizes})
    numbers = with_experts(model.config)[:2]
    random = torch.Generator().manual_seed(3)
    rows = torch.randn(20, model.config.hidden_size, generator=random).bfloat16()

    def computed(device: torch.device) -> Tensor:
        forward = of(model, "all")
        hidden = torch.empty(rows.shape, dtype=rows.dtype, device=device).copy_(rows)
        with torch.inference_mode():
            for number in numbers:
                own = routed(forward, number)
                own.experts = copying_from(placed(forward, number), threshold)
                hidden = hidden + forward._model.layers[number].feed_forward(hidden)
            return hidden.cpu()

    wanted = computed(CPU)
    with simulated(Device(GIB, pace=pace)):
        found = computed(CUDA)
    assert wanted.isfinite().all()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("together", [1, 2, 8])
def test_a_trial_step_takes_the_most_memory(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever experts rows have, and from however many on these are copied; of more pairs than
    the card computes at a time, and of fewer."""
    monkeypatch.setattr("penstock_worker.layers.host_experts.MOST_ROWS", 24)
    monkeypatch.setattr("penstock_worker.layers.streamed_experts.MOST_PAIRS", 96)
    model, device = written(tmp_path / "model.gguf", "glm45", *MIXTURES["glm45"]), Device(GIB)
    with simulated(device), torch.inference_mode():
        forward, number = of(model, "all"), with_experts(model.config)[0]
        host, trial = placed(forward, number), routed(forward, number)._trial
        monkeypatch.setattr(
            "penstock.model.expert_room.BUFFER_BYTES", together * host.streamed._bytes
        )
        host.streamed.__dict__.pop("together", None)
        assert host.streamed.together == together
        width = model.config.hidden_size
        device.rehearsing = True

        def peak(chosen: Tensor, layer: HostExperts) -> int:
            found = chosen.sort(1).values.int()
            hidden, there = torch.zeros(len(found), width, device=CUDA), found.to(CUDA)
            shares = torch.ones(found.shape, device=CUDA)
            torch.cuda.synchronize()
            device.peak = before = device.allocated
            layer(hidden.bfloat16(), there, shares)
            torch.cuda.synchronize()
            return device.peak - before

        for rows in (20, 80):
            with trial.on():
                alike = torch.zeros(rows, 3, dtype=torch.int32)
                tried = peak(trial(alike, host.together), host)
            even = torch.arange(rows)[:, None] * 3 + torch.arange(3)
            for routing in (
                torch.arange(3).expand(rows, 3),
                even % 8,
                torch.where(torch.arange(rows)[:, None] < rows // 2, torch.arange(3), even % 8),
            ):
                for threshold in (1, rows // 3, rows // 2, NEVER):
                    assert peak(routing, copying_from(host, threshold)) <= tried


def test_rows_of_an_expert_go_to_the_host_together() -> None:
    """Of those that aren't copied: the expert's weights are read once for them."""
    chosen = torch.tensor([[3, 1], [0, 1], [3, 2], [0, 1], [2, 1]], dtype=torch.int32)
    counts = np.bincount(chosen.flatten(), minlength=4)
    division = PairsByPlace.of(chosen, counts, 4)
    assert division.copied == (1,)
    assert chosen.flatten()[division.pairs].tolist() == [1, 1, 1, 1, 0, 0, 2, 2, 3, 3]
    assert division.rest.tolist() == [2, 6, 5, 8, 0, 4]


class BesideAtOnce(AtOnceBeside):
    """A queue whose work is a thread's, as a card's is."""

    beside = True


@pytest.mark.parametrize("queue", [AtOnceBeside, BesideAtOnce])
@pytest.mark.parametrize("threshold", [4, 1_000_000])
def test_what_the_host_uses_is_kept_until_steps_wait_for_it(
    threshold: int, queue: type[AtOnceBeside], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device runs what writes results after the host has queued it, and the current stream
    gives freed memory to the next tensor at once."""
    model = written(tmp_path / "model.gguf", "glm45", *MIXTURES["glm45"])
    forward = of(model, "all")
    number, kept = with_experts(model.config)[0], []
    host = copying_from(placed(forward, number), threshold)
    lane = HostLane(CPU, HandOverCounts())
    lane.side = queue()
    if lane.side.beside:
        lane._threads = ThreadPoolExecutor(1)
    for kind in (host_experts.RoutedRows, host_experts.RoutedPairs):

        def made(*parts: Any, kind: Any = kind) -> Any:
            kept.extend(weakref.ref(each) for each in parts)
            return kind(*parts)

        monkeypatch.setattr(host_experts, kind.__name__, made)
    host = replace(host, lane=lane)
    hidden = torch.randn(12, model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    gc.disable()
    try:
        with torch.inference_mode():
            chosen, shares = routed(forward, number).router(hidden.bfloat16())
            finish = host.begin(hidden.bfloat16(), chosen, shares)
            if lane._threads is not None:
                lane._threads.submit(int).result()  # The lane has done all.
            del chosen, shares
            assert len(kept) == 4
            assert all(each() is not None for each in kept)
            del finish
            assert all(each() is None for each in kept)
    finally:
        gc.enable()
        if lane._threads is not None:
            lane._threads.shutdown()


def test_work_that_fails_leaves_nothing_queued() -> None:
    """Its memory is given to others then."""
    device = Device(GIB)
    with simulated(device), torch.inference_mode():
        lane = HostLane(CUDA, HandOverCounts())
        source, target = torch.ones(4, pin_memory=True), torch.zeros(4, device=CUDA)

        def work() -> None:
            target.copy_(source, non_blocking=True)
            raise ValueError("worn out")

        with pytest.raises(ValueError, match="worn out"):
            lane.begin(work)()
        _, *others = device.streams
        assert others
        assert all(stream.done == stream.end for stream in others)


def test_estimates_have_the_workers_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the operations of each layer whose experts are on the host."""
    model = written(tmp_path / "model.gguf", "glm45", *MIXTURES["glm45"])
    forward, heard = of(model, "all"), []
    layers = with_experts(model.config)

    def hear(part: Any, method: str, name: str) -> None:
        call = getattr(part, method)

        def told(*arguments: Any) -> Any:
            heard.append(name)
            return call(*arguments)

        monkeypatch.setattr(part, method, told)

    for number in layers:
        own = forward._model.layers[number]
        hear(own.feed_forward, "_shared_part", "shared")
        hear(own, "feed_forward", "attention")  # It has been queued then.
    begin = HostLane.begin

    def begun(lane: HostLane, work: Callable[[], None]) -> Callable[[], None]:
        heard.extend(("down", "experts"))
        finish = begin(lane, work)

        def done() -> None:
            heard.append("up")
            finish()

        return done

    monkeypatch.setattr(HostLane, "begin", begun)
    with torch.inference_mode():
        logits(forward, model.groups, (0, [5, 3], 0))
    shape = ExpertShape(len(layers), 8, 3, 10**6, 10**6, 96, shared=1)
    made = PlacedModel(len(layers), 10, 10, 10, shape)
    beside = BesideCard(made, DEVICES["l4"], HostFigures(60, 16, 60), len(layers))
    assert heard == [each.name for each in beside.operations(2, 2, 10)][:-1]
