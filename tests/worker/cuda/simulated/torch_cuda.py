"""What torch.cuda has, of the simulated device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from penstock_kernels.triton import shared_memory
from penstock_worker.forward.captures import CUDACaptures
from penstock_worker.forward.triton_build import TritonBuild
from penstock_worker.forward.triton_heads import TritonHeadBuild
from penstock_worker.loading.device import ProfileRun
from penstock_worker.sampler.device import DeviceSampler
from tests.worker.cuda.simulated.device import CapturedWork, CudaStream, Device, Misuse
from tests.worker.cuda.simulated.hosts import Hosts
from tests.worker.cuda.simulated.launches import launching, rehearsing
from tests.worker.cuda.simulated.nccl import Communicator
from tests.worker.cuda.simulated.streams import Stream
from tests.worker.cuda.simulated.tensors import CPU, Dispatch

KEEPING = "kv-"
"""How names of threads begin that reach for the device beside steps."""
REHEARSALS = (
    (TritonBuild, "_profile_step"),
    (TritonHeadBuild, "_pass"),
    (CUDACaptures, "capture"),
    (ProfileRun, "sample"),
    (DeviceSampler, "warm_up"),
)
"""What launches kernels so that they are compiled, or to measure memory. Interpreted, that is most
of a worker's start."""


class Event:
    """now: the device of the host that makes it."""

    now: Callable[[], Device]

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.device = self.now()
        self._timed = enable_timing
        self.stream: Stream | None = None
        self.place = 0

    def record(self, stream: CudaStream | None = None) -> None:
        self.device.refuse_in_capture("an event is recorded")
        self.stream = (stream or self.device.current).queue
        self.place = self.stream.end

    def query(self) -> bool:
        return self.stream is None or self.device.reached(self.stream, self.place)

    def synchronize(self) -> None:
        if self.stream is not None:
            self.device.wait(self.stream, self.place)

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds: one for each thing that was queued."""
        for event in (self, later):
            if not event._timed or event.stream is None or event.stream.done < event.place:
                raise Misuse("an event's time is asked, which it hasn't or not yet")
        return float(later.place - self.place)


class CUDAGraph:
    def __init__(self) -> None:
        self.recording: CapturedWork | None = None
        self.device: Device | None = None

    def replay(self) -> None:
        if self.recording is None or self.device is None:
            raise Misuse("a graph is replayed that was never captured")
        self.device.replay(self.recording)

    def reset(self) -> None:
        self.recording = None


class Generator(torch.Generator):
    """The CPU's, whatever device is named: there is no other."""

    def __new__(cls, device: object = CPU) -> Generator:
        return super().__new__(cls, CPU)


@contextmanager
def capturing(now: Callable[[], Device]) -> Iterator[Callable[..., Any]]:
    """In place of torch.cuda.graph."""

    @contextmanager
    def graph(
        made: CUDAGraph,
        pool: object = None,
        stream: CudaStream | None = None,
        capture_error_mode: str = "",
    ) -> Iterator[None]:
        if pool is None or stream is None or capture_error_mode != "thread_local":
            raise Misuse("a capture needs a pool, a stream and an error mode of its own")
        device = now()
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


def _beside(now: Callable[[], Device]) -> Callable[[CudaStream], Any]:
    """In place of torch.cuda.stream."""

    @contextmanager
    def beside(stream: CudaStream) -> Iterator[None]:
        here = now().here
        before, here.beside = getattr(here, "beside", None), stream
        try:
            yield
        finally:
            here.beside = before

    return beside


def _runtime(now: Callable[[], Device]) -> SimpleNamespace:
    pinned: dict[int, Device] = {}

    def register(address: int, size: int, flags: int) -> int:
        pinned[address] = now()
        pinned[address].pin(address, size)
        return 0

    def unregister(address: int) -> None:
        """From any thread: whoever gives the last reference back."""
        pinned.pop(address).unpin(address)

    return SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)


@contextmanager
def simulated(device: Device, compiled: Callable[..., object] | None = None) -> Iterator[Device]:
    """torch has this GPU.  compiled: is told of each launch that Triton would compile for."""
    run = threading.Thread.run

    def run_aside(thread: threading.Thread) -> None:
        """A thread of the worker's that steps don't wait for."""
        device.here.aside = True
        with Dispatch(device):
            run(thread)

    with (
        _patched(lambda: device, device.computes, compiled),
        pytest.MonkeyPatch.context() as patch,
        Dispatch(device),
    ):
        patch.setattr(threading.Thread, "run", run_aside)
        yield device


@contextmanager
def simulated_ranks(devices: list[Device]) -> Iterator[Hosts]:
    """Each of the hosts has one of these GPUs, and torch has NCCL between them. All compute, or
    none does."""
    hosts = Hosts(devices)

    class OurCommunicator(Communicator):
        pass

    OurCommunicator.hosts = hosts
    run, start = threading.Thread.run, threading.Thread.start
    starters: dict[threading.Thread, Device] = {}

    def start_aside(thread: threading.Thread) -> None:
        device = hosts.asking()
        if device is not None and thread.name.startswith(KEEPING):
            starters[thread] = device
        start(thread)

    def run_aside(thread: threading.Thread) -> None:
        device = starters.pop(thread, None)
        if device is None:
            run(thread)
        else:
            hosts.beside(device, lambda: run(thread))

    with _patched(hosts.device, devices[0].computes), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "ProcessGroupNCCL", OurCommunicator, raising=False)
        patch.setattr(threading.Thread, "start", start_aside)
        patch.setattr(threading.Thread, "run", run_aside)
        yield hosts


@contextmanager
def _patched(
    now: Callable[[], Device], computes: bool, compiled: Callable[..., object] | None = None
) -> Iterator[None]:
    """now: the device of the host that asks."""
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

    runtime = _runtime(now)
    OurEvent.now = staticmethod(now)
    with pytest.MonkeyPatch.context() as patch, capturing(now) as graph:
        cuda = {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda _: None,
            "get_device_name": lambda _: "a simulated GPU",
            "get_device_capability": properties,
            "current_stream": lambda _=None: now().current,
            "stream": _beside(now),
            "set_stream": lambda stream: setattr(now(), "stream", stream),
            "synchronize": lambda _=None: now().wait(),
            "empty_cache": lambda: now().refuse_in_capture("the cache is emptied"),
            "mem_get_info": lambda _: (now().total - now().allocated, now().total),
            "memory_reserved": lambda _: now().allocated,
            "memory_allocated": lambda _: now().allocated,
            "max_memory_allocated": lambda _: now().peak,
            "reset_peak_memory_stats": lambda _: setattr(now(), "peak", now().allocated),
            "graph_pool_handle": lambda: (0, 1),
            "Stream": lambda _: CudaStream(now(), Stream()),
            "Event": OurEvent,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "cudart": lambda: runtime,
        }
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "tensor", tensor)
        patch.setattr(shared_memory, "program_bytes", lambda _: shared_memory.HOPPER.size)
        patch.setattr(torch, "Generator", Generator)
        for kind in (InterpretedFunction, JITFunction):
            run = kind.run if kind is InterpretedFunction and computes else None
            patch.setattr(kind, "run", launching(now, run, compiled))
        for owner, name in REHEARSALS:
            patch.setattr(owner, name, rehearsing(now, getattr(owner, name)))
        yield
