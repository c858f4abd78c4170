"""A GPU that isn't there: a queue of work that nobody does before somebody waits for it.

What is queued is computed on the CPU, in order and late: as late as a program may rely on.  So a
host buffer that is written again too soon, and a result that is read before it came, show.
"""

from __future__ import annotations

import random
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tests.worker.cuda.simulated.streams import Meeting, Stream, WaitFor, Work

if TYPE_CHECKING:
    from tests.worker.cuda.simulated.hosts import Hosts

PIECE = 512
"""Bytes: torch's allocator rounds up to them."""


class Misuse(BaseException):
    """What a GPU wouldn't allow, or wouldn't forgive. No Exception: the worker contains those."""


@dataclass(eq=False)
class Memory:
    """What the allocator gave for one tensor; its views share it. arriving: messages that are to be
    received there, and were not waited for."""

    device: Device
    size: int
    captured: bool
    arriving: int = 0


@dataclass(eq=False)
class CudaStream:
    """torch.cuda's, of one of a device's queues."""

    device: Device
    queue: Stream

    def wait_event(self, event: Any) -> None:
        """What comes next here comes after the event; the host doesn't wait."""
        self.device.refuse_in_capture("a stream waits for an event")
        if event.stream is not None and self.device.computes:
            self.device.put_on(self.queue, WaitFor(event.stream, event.place))


@dataclass
class CapturedWork:
    """Work of a CUDA graph. outside: memory of others that it reads or writes at each replay."""

    works: list[Work] = field(default_factory=list)
    inside: weakref.WeakSet[Memory] = field(default_factory=weakref.WeakSet)
    outside: dict[int, weakref.ref[Memory]] = field(default_factory=dict)


class Device:
    """total: bytes of memory.  pace: of random numbers, how much is done whenever the host looks;
    None: nothing, until it waits.  computes: else shapes are all there is, in no memory.

    waits: who waited for the device, by name.  launched: kernels that were, by what Triton compiles
    them for.  pinned: memory of the host that the device may reach.  main, streams: where work goes
    that computes, and all of them.  hosts: of the devices that work together.  rehearsing: nobody
    reads what kernels compute now; they are launched, and their results stay poison.
    """

    hosts: Hosts | None = None

    def __init__(self, total: int, *, pace: int | None = None, computes: bool = True) -> None:
        self.total = total
        self.computes = computes
        self.waits: list[str] = []
        self.launched: dict[object, int] = {}
        self.grids: list[tuple[str, tuple[int, ...]]] = []
        self.allocated = self.peak = 0
        self.pool = self.pool_peak = 0
        self.highest = 0
        self.captures = 0
        self.rehearsing = False
        self.recording: CapturedWork | None = None
        self._written: list[tuple[int, int]] = []
        """Pinned memory that work in the queue writes to."""
        self._pinned: dict[int, tuple[int, Tensor | None]] = {}
        self.main = Stream()
        self.streams = [self.main]
        self.default = CudaStream(self, self.main)
        self.stream = self.default
        self.here = threading.local()
        """What each thread has: `beside`, the stream that it queues to instead of `stream`, if any;
        `aside`, whether it may wait for the device."""
        self._lock: AbstractContextManager[Any] = threading.RLock()
        """Held by the thread that queues something, or does what was queued."""
        self._pace = None if pace is None else random.Random(pace)

    def share(self, hosts: Hosts, turn: AbstractContextManager[Any]) -> None:
        """It works together with others. turn: held by whoever queues something to one of them:
        what one does may reach the others."""
        self.hosts, self._lock = hosts, turn

    # ---- the queue

    @property
    def current(self) -> CudaStream:
        """Where this thread's work goes."""
        return getattr(self.here, "beside", None) or self.stream

    def put(self, work: Work, *, check: bool = False) -> None:
        """check: it is done where shapes are all there is, too."""
        beside = getattr(self.here, "beside", None)
        if beside is None and self.recording is None and self.stream is not self.default:
            raise Misuse("work goes to a stream of captures, which waits for no other")
        if not (self.computes or check):
            return
        if self.recording is not None and beside is None:
            self.recording.works.append(work)
        else:
            self.put_on(self.main if beside is None else beside.queue, work)

    def put_on(self, stream: Stream, work: Work) -> None:
        with self._lock:
            if stream not in self.streams:
                self.streams.append(stream)
            stream.put(work)
        if self.hosts is not None:
            self.hosts.changed()

    def reached(self, stream: Stream, place: int) -> bool:
        """A look, which doesn't wait."""
        self.refuse_in_capture("an event is asked")
        if self._pace is not None:
            self._run(stream, self._some(stream))
        return stream.done >= place

    def wait(self, stream: Stream | None = None, place: int = 0) -> None:
        """Until the stream has reached the place; None: all streams their ends."""
        self.refuse_in_capture("the host waits")
        if not getattr(self.here, "aside", False):
            self.waits.append(caller())
        ends = [(each, each.end) for each in self.streams]
        if stream is not None:
            ends = [(stream, place)]
        for stream, end in ends:
            if self._run(stream, end):
                continue
            if self.hosts is None:
                raise Misuse("the device waits for others, and there are none")
            self.hosts.until(lambda stream=stream, end=end: self._run(stream, end))

    def go_ahead(self) -> None:
        """Goes on as far as may be, or as its pace allows, while another device waits for it."""
        self._run(self.main, self.main.end if self._pace is None else self._some(self.main))

    def _some(self, stream: Stream) -> int:
        """A place that it may have got to by itself."""
        if self._pace is None:
            return stream.done
        return min(stream.end, stream.done + self._pace.randint(0, 60))

    def _run(self, stream: Stream, place: int) -> bool:
        with self._lock, _disable_current_modes(), torch.inference_mode():
            return stream.run(place)

    # ---- memory

    def allocate(self, size: int) -> Memory:
        """Raises torch.OutOfMemoryError."""
        size = -(-size // PIECE) * PIECE
        held = self.allocated + (self.pool_peak if self.recording is None else self.pool)
        if held + size > self.total:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {size} bytes, {held} are taken")
        memory = Memory(self, size, self.recording is not None)
        if self.recording is not None:
            self.recording.inside.add(memory)
            self.pool += size
            self.pool_peak = max(self.pool_peak, self.pool)
        else:
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
        self.highest = max(self.highest, self.allocated + self.pool_peak)
        weakref.finalize(memory, self._free, size, memory.captured)
        return memory

    def touch(self, memory: Memory) -> None:
        """A tensor of it is read or written by what is queued now."""
        if memory.device is not self:
            raise Misuse("a tensor of another rank's device is used")
        if memory.arriving:
            raise Misuse("a buffer is used, and what is received there was not waited for")
        recording = self.recording
        if recording is not None and memory not in recording.inside:
            recording.outside[id(memory)] = weakref.ref(memory)
        elif recording is None and memory.captured:
            raise Misuse("a tensor of a graph's pool is used beside its graph")

    def _free(self, size: int, captured: bool) -> None:
        if captured:
            self.pool -= size
        else:
            self.allocated -= size

    # ---- graphs

    def begin_capture(self) -> None:
        self.wait()
        self.recording = CapturedWork()
        self.captures += 1

    def end_capture(self) -> CapturedWork:
        recording, self.recording = self.recording, None
        if recording is None:
            raise Misuse("nothing is captured")
        if recording.inside:
            sizes = [memory.size for memory in recording.inside]
            raise Misuse(f"memory of the graphs' pool is held beyond the capture: {sizes}")
        return recording

    def replay(self, recording: CapturedWork) -> None:
        if any(memory() is None for memory in recording.outside.values()):
            raise Misuse("a graph reaches memory that was given back")
        for work in recording.works:
            self.put(work.again() if isinstance(work, Meeting) else work, check=True)

    def refuse_in_capture(self, what: str) -> None:
        if self.recording is not None:
            raise Misuse(f"{what} while a graph is captured, by {caller()}")

    # ---- the host's memory

    def pin(self, address: int, size: int, keep: Tensor | None = None) -> None:
        """keep: whose memory it is, so that no other gets its address."""
        self._pinned[address] = size, keep

    def unpin(self, address: int) -> None:
        del self._pinned[address]

    def writing(self, host: Tensor) -> Callable[[], None]:
        """Work is queued that writes there. Returns what is called once it is done."""
        place = _place(host)
        self._written.append(place)
        return lambda: self._written.remove(place)

    def writes(self, host: Tensor) -> bool:
        """Whether work that is queued writes there: then nobody knows yet what will be there."""
        begin, end = _place(host)
        return any(first < end and begin < last for first, last in list(self._written))

    def reaches(self, host: Tensor) -> bool:
        """Whether it is pinned, whole."""
        first, last = _place(host)
        return any(
            begin <= first and last <= begin + size for begin, (size, _) in self._pinned.items()
        )


def _place(host: Tensor) -> tuple[int, int]:
    """Addresses of its first byte, and behind its last."""
    first = host.untyped_storage().data_ptr() + host.storage_offset() * host.itemsize
    return first, first + host.nbytes


def caller() -> str:
    """Whose line of the worker it is that runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("penstock_"):
            return frame.f_code.co_qualname
        frame = frame.f_back
    return "a test"
