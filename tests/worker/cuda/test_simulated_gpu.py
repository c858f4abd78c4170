"""The simulated GPU refuses what a real one does, or would suffer for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.rowwise.norms import rms_norm
from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.tensors import CUDA
from tests.worker.cuda.simulated.torch_cuda import simulated

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]


@pytest.fixture
def device() -> Iterator[Device]:
    with simulated(Device(1 << 20)) as made, torch.inference_mode():
        yield made


def ones() -> Tensor:
    return torch.ones(2, 4, device=CUDA)


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=1, stream="s", capture_error_mode="thread_local"):
        work()
    return graph


def reuse_a_buffer() -> None:
    pinned = torch.ones(4, pin_memory=True)
    pinned.to(CUDA, non_blocking=True)
    pinned.fill_(2.0)
    torch.cuda.synchronize()


def replay_what_is_gone() -> None:
    source, target = ones(), ones()
    graph = captured(lambda: target.copy_(source))
    source.memory = target.memory
    graph.replay()


def leak_from_a_capture() -> None:
    kept: list[Tensor] = []
    captured(lambda: kept.append(ones()))


MISUSES: dict[str, tuple[Callable[[], object], str]] = {
    "item": (lambda: ones().sum().item(), "waits for the device"),
    "bool": (lambda: bool(ones().any()), "waits for the device"),
    "list": (lambda: ones().tolist(), "waits for the device"),
    "masked": (lambda: ones()[ones() > 0], "waits for the device"),
    "mixed": (lambda: ones() + torch.ones(2, 4), "mixes devices"),
    "indexed": (lambda: ones()[torch.tensor([1])], "mixes devices|meta"),
    "unpinned": (lambda: torch.ones(4).to(CUDA, non_blocking=True), "isn't pinned"),
    "to unpinned": (lambda: ones().to("cpu", non_blocking=True), "isn't pinned"),
    "overwritten": (reuse_a_buffer, "written while a copy"),
    "kernel": (lambda: rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5), "a tensor of the cpu"),
    "compiled late": (lambda: captured(lambda: rms_norm(ones(), ones()[0], 1e-5)), "be compiled"),
    "gone": (replay_what_is_gone, "given back"),
    "leaked": (leak_from_a_capture, "beyond the capture"),
    "wait in capture": (lambda: captured(torch.cuda.synchronize), "while a graph is captured"),
    "untimed": (lambda: timed(enable_timing=False), "an event's time"),
}


def timed(*, enable_timing: bool) -> float:
    events = [torch.cuda.Event(enable_timing=enable_timing) for _ in range(2)]
    for event in events:
        event.record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1])


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name: str) -> None:
    misuse, message = MISUSES[name]
    with pytest.raises(Misuse, match=message):
        misuse()


def test_work_is_done_when_somebody_waits(device: Device) -> None:
    host = torch.zeros(2, 4, pin_memory=True)
    on_device = ones()
    host.copy_(on_device * 3, non_blocking=True)
    assert not (host == 3).any()
    assert timed(enable_timing=True) >= 0
    assert (host == 3).all()
    assert device.waits == ["a test"]


def test_a_graph_computes_what_its_memory_holds_then(device: Device) -> None:
    source, target, host = ones(), ones(), torch.zeros(2, 4, pin_memory=True)
    graph = captured(lambda: target.copy_(source * 2))
    source.fill_(5.0)
    graph.replay()
    host.copy_(target, non_blocking=True)
    torch.cuda.synchronize()
    assert (host == 10).all()
    assert device.pool_peak == 512


def test_memory_is_counted(device: Device) -> None:
    before = device.allocated
    kept = torch.zeros(1000, device=CUDA)
    assert device.allocated - before == 4096
    view = kept[5:]
    del kept
    assert device.allocated - before == 4096
    del view
    assert device.allocated == before
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 20, device=CUDA)
