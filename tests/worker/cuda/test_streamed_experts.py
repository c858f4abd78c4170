"""Experts in the host's memory that are copied to the card for a prompt's rows: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.model import expert_room
from penstock.model.expert_room import rows_worth_a_copy
from penstock_kernels.cpu import library
from penstock_worker.device.copy_rates import CopyRates
from penstock_worker.layers import host_experts, streamed_experts
from penstock_worker.layers.host_experts import HostExperts
from penstock_worker.layers.level_experts import CardExperts
from penstock_worker.layers.streamed_experts import pinned_memory
from tests.interpreted_triton import DEVICE
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.test_cpu_experts import MIXTURES, of, placed, with_experts, written

pytestmark = pytest.mark.timeout(300)

ROWS = 24
NEVER = 1_000_000


@pytest.fixture(autouse=True)
def same_instructions() -> Iterator[None]:
    """Loading chooses them for its process."""
    before = library.instruction_set()
    yield
    library.use(before)


@pytest.fixture(params=MIXTURES)
def mixture(request: pytest.FixtureRequest, tmp_path: Path) -> CPUModel:
    return written(tmp_path / "model.gguf", request.param, *MIXTURES[request.param])


def routed(forward: Any, number: int) -> Any:
    """The layer's RoutedByLevels."""
    own = forward._model.layers[number].feed_forward._routed
    return getattr(own, "_experts", own)


def copying_from(host: HostExperts, threshold: int) -> HostExperts:
    return replace(host, streamed=replace(host.streamed, worth=lambda: threshold))


def rows_of(model: CPUModel) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, model.config.hidden_size, generator=random).bfloat16().to(DEVICE)


def in_chunks(layer: Any, hidden: Tensor, sizes: tuple[int, ...]) -> Tensor:
    with torch.inference_mode():
        return torch.cat([layer(part) for part in hidden.split(sizes)])


@pytest.mark.parametrize("together", [1, 32 << 20])
def test_any_threshold_and_any_chunks_give_the_same(
    mixture: CPUModel, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied, some of a layer's experts are, or all; one at a time, or together."""
    monkeypatch.setattr(expert_room, "BUFFER_BYTES", together)
    monkeypatch.setattr(streamed_experts, "MOST_PAIRS", 15)
    monkeypatch.setattr(host_experts, "MOST_ROWS", 8)
    forward, number = of(mixture, "all"), with_experts(mixture.config)[0]
    own, layer = routed(forward, number), forward._model.layers[number].feed_forward
    host, hidden = placed(forward, number), rows_of(mixture)
    counts = host.lane.counts
    own.experts = copying_from(host, NEVER)
    wanted = in_chunks(layer, hidden, (ROWS,))
    assert (counts.card_rows, counts.experts_copied, counts.expert_bytes) == (0, 0, 0)
    found, _ = own.router(hidden)
    often = np.sort(np.bincount(found.flatten().cpu()))
    middle = int(often[-2])
    assert often[0] < middle
    pairs, computed = found.numel(), {}
    for threshold in (1, middle):
        own.experts = copying_from(host, threshold)
        before = counts.host_rows, counts.card_rows
        assert torch.equal(in_chunks(layer, hidden, (ROWS,)), wanted)
        computed[threshold] = counts.host_rows - before[0], counts.card_rows - before[1]
        assert torch.equal(in_chunks(layer, hidden, (1, 16, 4, 3)), wanted)
    assert computed == {
        1: (0, pairs),
        middle: (often[often < middle].sum(), often[often >= middle].sum()),
    }
    assert all((counts.down_bytes, counts.up_bytes, counts.expert_bytes))


def test_experts_on_the_card_compute_the_same(tmp_path: Path) -> None:
    model = written(tmp_path / "model.gguf", "gpt-oss", *MIXTURES["gpt-oss"])
    hidden, found = rows_of(model), []
    for words, kind in (("all", HostExperts), ("0", CardExperts)):
        forward = of(model, words)
        own = routed(forward, 0)
        assert isinstance(own.experts, kind)
        if isinstance(own.experts, HostExperts):
            own.experts = copying_from(own.experts, 3)
        found.append(in_chunks(forward._model.layers[0].feed_forward, hidden, (ROWS,)))
    assert torch.equal(*found)


def test_two_buffers_hold_what_is_copied_at_a_time(
    mixture: CPUModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all layers."""
    forward = of(mixture, "all")
    hosts = [placed(forward, number) for number in with_experts(mixture.config)]
    (buffers,) = {id(each.streamed.buffers): each.streamed.buffers for each in hosts}.values()
    matrices = [
        each
        for kind in (hosts[0].streamed.gates, hosts[0].streamed.ups, hosts[0].streamed.downs)
        for each in kind
    ]
    held = sum(each.size + (0 if each.bias is None else each.bias.nbytes) for each in matrices)
    assert buffers.nbytes == 2 * held  # A tiny layer's experts go into one.
    assert [each.pinned.nbytes for each in buffers._slots] == [held, held]
    monkeypatch.setattr(expert_room, "BUFFER_BYTES", held // len(hosts[0].streamed.ups))
    one = placed(of(mixture, "all"), with_experts(mixture.config)[0]).streamed.buffers
    assert one.nbytes == buffers.nbytes // len(hosts[0].streamed.ups)


def test_an_expert_is_copied_where_that_is_sooner() -> None:
    """Qwen3-30B-A3B's in Q4_K: 2.7 MB are on the way for 0.13 ms, in which 16 threads compute 34
    of its rows."""
    weights = 3 * 2048 * 768
    assert rows_worth_a_copy(weights * 9 // 16, weights, 16) == 34
    assert rows_worth_a_copy(weights * 9 // 16, weights, 64) == 135
    assert rows_worth_a_copy(weights * 9 // 16, weights, 1) == 8


def test_a_slower_bus_makes_fewer_copies() -> None:
    weights = 3 * 2048 * 768
    assert rows_worth_a_copy(weights * 9 // 16, weights, 16, link=10e9) == 68
    assert rows_worth_a_copy(weights * 9 // 16, weights, 16, link=50e9) == 14


def test_the_threshold_goes_by_what_was_measured(
    mixture: CPUModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all layers have been loaded."""
    monkeypatch.setattr(expert_room, "FEWEST_ROWS", 1)
    monkeypatch.setattr(streamed_experts, "copy_rates", lambda *_: CopyRates(3e9, 9e9, 2e8, 1))
    streamed = placed(of(mixture, "all"), with_experts(mixture.config)[0]).streamed
    assert streamed.buffers.rate == 2e8
    size = sum(each[0].size for each in (streamed.gates, streamed.ups, streamed.downs))
    weights = 3 * streamed.ups[0].struct.outputs * streamed.ups[0].struct.inputs
    assert streamed.threshold == rows_worth_a_copy(size, weights, 2, link=2e8) > 100


@pytest.mark.parametrize("together", [1, 4, 32])
def test_a_trial_step_has_experts_in_turn(
    mixture: CPUModel, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are copied together, however many rows there are: one group has all pairs."""
    forward, number = of(mixture, "all"), with_experts(mixture.config)[0]
    own, layer = routed(forward, number), forward._model.layers[number].feed_forward
    host = own.experts
    monkeypatch.setattr(expert_room, "BUFFER_BYTES", together * host.streamed._bytes)
    host.streamed.__dict__.pop("together", None)
    counts, hidden = host.lane.counts, rows_of(mixture)[:8]
    assert host.streamed.threshold == 8
    wanted = min(max(host.experts.active, together), own.router.rule.count)
    assert host.together == wanted
    with own._trial.on():
        in_chunks(layer, hidden[:7], (7,))
    assert counts.experts_copied == wanted
    assert (counts.host_rows, counts.card_rows) == (0, 7 * host.experts.active)
    in_chunks(layer, hidden[:7], (7,))  # Fewer than are worth a copy.
    assert counts.host_rows == 7 * host.experts.active
    chosen = torch.zeros(ROWS, 2, dtype=torch.int32)
    assert own._trial(chosen, 5) is chosen
    with own._trial.on():
        evenly = own._trial(chosen, 5)
    assert (evenly[:, 0] < evenly[:, 1]).all()
    assert (np.bincount(evenly.flatten()) >= ROWS * 2 // 5).all()


def test_memory_that_cannot_be_pinned_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("resource already mapped")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(StartupError, match=r"cpu_experts: 2.0 MiB of memory can't be pinned: res"):
        pinned_memory((1 << 20, 1), torch.float16, torch.device("cuda"))
