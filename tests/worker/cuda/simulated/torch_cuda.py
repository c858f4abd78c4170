"""What torch.cuda has, of the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from tests.worker.cuda.simulated.device import Device, Misuse, Recording
from tests.worker.cuda.simulated.launches import launching
from tests.worker.cuda.simulated.tensors import CPU, Dispatch


class Event:
    """Of one device."""

    device: Device

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timed = enable_timing
        self._place: int | None = None

    def record(self, stream: object = None) -> None:
        self.device.refuse_in_capture("an event is recorded")
        self._place = self.device.end

    def query(self) -> bool:
        return self._place is None or self.device.reached(self._place)

    def synchronize(self) -> None:
        if self._place is not None:
            self.device.wait(self._place)

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds: one for each thing that was queued."""
        for event in (self, later):
            if not event._timed or event._place is None or not self.device.passed(event._place):
                raise Misuse("an event's time is asked, which it hasn't or not yet")
        return float(later._place - self._place)


class CUDAGraph:
    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.device: Device | None = None

    def replay(self) -> None:
        if self.recording is None or self.device is None:
            raise Misuse("a graph is replayed that was never captured")
        self.device.replay(self.recording)


class Generator(torch.Generator):
    """The CPU's, whatever device is named: there is no other."""

    def __new__(cls, device: object = CPU) -> Generator:
        return super().__new__(cls, CPU)


@contextmanager
def capturing(device: Device) -> Iterator[Callable[..., Any]]:
    """In place of torch.cuda.graph."""

    @contextmanager
    def graph(
        made: CUDAGraph,
        pool: object = None,
        stream: str | None = None,
        capture_error_mode: str = "",
    ) -> Iterator[None]:
        if pool is None or stream is None or capture_error_mode != "thread_local":
            raise Misuse("a capture needs a pool, a stream and an error mode of its own")
        device.begin_capture()
        before, device.stream = device.stream, stream
        try:
            yield
        except BaseException:
            device.recording = None  # As torch: ending the capture fails, and the stream stays.
            raise
        made.recording, made.device = device.end_capture(), device
        device.stream = before

    yield graph


def _runtime(device: Device) -> SimpleNamespace:
    def register(address: int, size: int, flags: int) -> int:
        device.pin(address, size)
        return 0

    return SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=device.unpin)


@contextmanager
def simulated(device: Device, compiled: Callable[..., object] | None = None) -> Iterator[Device]:
    """torch has this GPU.  compiled: is told of each launch that Triton would compile for."""
    real_tensor = torch.tensor

    def tensor(data: Any, *, pin_memory: bool = False, device: Any = None, **more: Any) -> Tensor:
        made = real_tensor(data, **more)
        if device is not None:
            made = made.to(device)
        return made.pin_memory() if pin_memory else made

    def properties(_: object = None) -> tuple[int, int]:
        return 9, 0

    class OurEvent(Event):
        pass

    OurEvent.device = device
    with pytest.MonkeyPatch.context() as patch, capturing(device) as graph:
        cuda = {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda _: None,
            "get_device_name": lambda _: "a simulated GPU",
            "get_device_capability": properties,
            "current_stream": lambda _=None: device.stream,
            "set_stream": lambda stream: setattr(device, "stream", stream),
            "synchronize": lambda _=None: device.wait(),
            "empty_cache": lambda: device.refuse_in_capture("the cache is emptied"),
            "mem_get_info": lambda _: (device.total - device.allocated, device.total),
            "memory_reserved": lambda _: device.allocated,
            "memory_allocated": lambda _: device.allocated,
            "max_memory_allocated": lambda _: device.peak,
            "reset_peak_memory_stats": lambda _: setattr(device, "peak", device.allocated),
            "graph_pool_handle": lambda: (0, 1),
            "Stream": lambda _: "another stream",
            "Event": OurEvent,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "cudart": lambda: _runtime(device),
        }
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "tensor", tensor)
        patch.setattr(torch, "Generator", Generator)
        for kind in (InterpretedFunction, JITFunction):
            run = kind.run if kind is InterpretedFunction and device.computes else None
            patch.setattr(kind, "run", launching(device, run, compiled))
        with Dispatch(device):
            yield device
