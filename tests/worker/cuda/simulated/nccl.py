"""In place of ProcessGroupNCCL: what ranks say to one another is work on their streams.

A message goes on a stream of its own, behind all that was queued when it was called for.  It is
read as late as may be: when the receiver needs it, and the sender has done all that it may do
before it waits for it.  What all ranks of a communicator do together goes on the stream that
computes, and may be part of a graph.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.hosts import Hosts
from tests.worker.cuda.simulated.streams import Meeting, Stream
from tests.worker.cuda.simulated.tensors import CudaTensor

RUBBISH = 0xA5
Name = tuple[int, int, int]
_names = itertools.count()


@dataclass
class Wire:
    """Connects the ranks of one communicator.

    sent, received: by (sender, receiver, number), until they were delivered.  rounds: of each of
    what all do together, what each rank brought.
    """

    ends: dict[int, Communicator] = field(default_factory=dict)
    sent: dict[Name, Sending] = field(default_factory=dict)
    received: dict[Name, Receiving] = field(default_factory=dict)
    rounds: list[dict[int, tuple[str, Tensor]]] = field(default_factory=list)


_wires: dict[str, Wire] = {}


class Communicator:
    """One rank's end of a wire. hosts, device: whose it is."""

    hosts: Hosts
    Options = SimpleNamespace

    def __init__(self, store: Any, rank: int, size: int, options: object) -> None:
        self.rank, self.size = rank, size
        self.device: Device | None = None
        self.stream = Stream()
        self.aborted = self.connected = False
        self.rounds = 0
        self._sends, self._receives = itertools.count(), itertools.count()
        if rank == 0:
            name = str(next(_names))
            _wires[name] = Wire()
            store.set("wire", name)
        self.wire = _wires[store.get("wire").decode()]
        self.wire.ends[rank] = self

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Sent:
        tensor = self._taken(tensors, "a message")
        name = (self.rank, to, next(self._sends))
        self.wire.sent[name] = message = Sending(self, name, tensor)
        return self._queue(message)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Sent:
        tensor = self._taken(tensors, "a message")
        tensor.memory.arriving += 1
        name = (source, self.rank, next(self._receives))
        self.wire.received[name] = message = Receiving(self, name, tensor)
        return self._queue(message)

    def _allgather_base(self, out: Tensor, x: Tensor, options: Any) -> None:
        if out.numel() != self.size * x.numel():
            raise Misuse("what is gathered has another size than its parts together")
        self._all("gather", out, x, options)

    def alltoall_base(
        self, out: Tensor, x: Tensor, to: list[int], of: list[int], options: Any
    ) -> None:
        self._all("exchange", out, x, options)

    def abort(self) -> None:
        """The device goes on, with whatever is in its buffers."""
        self.aborted = True
        self.hosts.changed()

    # ---- queueing

    def _all(self, kind: str, out: Tensor, x: Tensor, options: Any) -> None:
        if options.asyncOp:
            raise Misuse(f"a {kind} on a stream of its own isn't simulated")
        target, source = (self._taken([each], f"a {kind}") for each in (out, x))
        device = self._device()
        if device.recording is not None and not self.connected:
            raise Misuse("ranks would be connected while a graph is captured")
        self.connected = True
        device.put(Together(self, kind, target.content, source.content), check=True)

    def _taken(self, tensors: list[Tensor], what: str) -> CudaTensor:
        (tensor,) = tensors
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted")
        if not isinstance(tensor, CudaTensor):
            raise Misuse(f"{what} of memory of the {tensor.device}")
        if not tensor.is_contiguous():
            raise Misuse(f"{what} that isn't contiguous")
        device = self._device()
        if what == "a message":
            device.refuse_in_capture("a message is sent or received")
        device.touch(tensor.memory)
        return tensor

    def _queue(self, message: Message) -> Sent:
        device = self._device()
        device.put(message.reach, check=True)
        self.stream.put(message)
        return Sent(self, message.tensor, self.stream.end, isinstance(message, Receiving))

    def _device(self) -> Device:
        """Found when it is first used, as NCCL does."""
        if self.device is None:
            self.device = self.hosts.device()
            self.device.streams.append(self.stream)
        return self.device


class Message(Meeting):
    """One end of a message between two ranks.

    begun: the stream that computes has come to it.  delivered: it needn't be waited for any more.
    """

    def __init__(self, end: Communicator, name: Name, tensor: CudaTensor) -> None:
        self.end, self.name, self.tensor = end, name, tensor
        self.begun = self.delivered = False

    def reach(self) -> None:
        self.begun = True

    def again(self) -> Message:
        raise Misuse("a message is part of a graph")

    def _begin(self) -> bool:
        return self.end._device().main.run_until(lambda: self.begun)


class Sending(Message):
    then: Tensor

    def reach(self) -> None:
        super().reach()
        if self.end._device().computes:
            self.then = self.tensor.content.clone()

    def meet(self) -> bool:
        """Whether it was taken, which the receiver has to want."""
        if self.end.aborted:
            return True
        other = self.end.wire.received.get(self.name)
        if not self._begin() or other is None or not other._begin():
            return False
        self.end._device().go_ahead()
        self._deliver(other)
        self.delivered = other.delivered = True
        del self.end.wire.sent[self.name], self.end.wire.received[self.name]
        return True

    def _deliver(self, other: Receiving) -> None:
        sizes = [each.tensor.numel() for each in (self, other)]
        if sizes[0] != sizes[1]:
            raise Misuse(f"{sizes[0]} bytes are sent, {sizes[1]} received")
        if not self.end._device().computes:
            return
        if not torch.equal(self.then, self.tensor.content):
            raise Misuse("a buffer was written while it was being sent")
        other.tensor.content.copy_(self.tensor.content)


class Receiving(Message):
    def reach(self) -> None:
        super().reach()
        if self.end._device().computes:
            self.tensor.content.fill_(RUBBISH)

    def meet(self) -> bool:
        if self.end.aborted or self.delivered:
            return True
        other = self.end.wire.sent.get(self.name)
        if not self._begin() or other is None:
            return False
        return other.end.stream.run_until(lambda: self.delivered)


@dataclass
class Sent:
    """torch's Work: of a message that was sent or is received."""

    end: Communicator
    tensor: CudaTensor
    place: int
    receives: bool
    waited: bool = False

    def wait(self) -> None:
        """The stream that computes waits, not the host."""
        device = self.end._device()
        device.refuse_in_capture("a message is waited for")
        device.put(Waiting(self.end, self.place), check=True)
        if self.receives and not self.waited:
            self.tensor.memory.arriving -= 1
        self.waited = True


@dataclass
class Waiting(Meeting):
    end: Communicator
    place: int

    def meet(self) -> bool:
        return self.end.aborted or self.end.stream.run(self.place)

    def again(self) -> Waiting:
        raise Misuse("a message is part of a graph")


class Together(Meeting):
    """What all ranks of a communicator do at once. kind: all gather, or all exchange their rows.
    out, x: contents; the memory is the queue's own, or that of a graph's pool."""

    def __init__(self, end: Communicator, kind: str, out: Tensor, x: Tensor) -> None:
        self.end, self.kind, self.out, self.x = end, kind, out, x
        self.number: int | None = None

    def again(self) -> Together:
        if self.end.aborted:
            raise Misuse("a graph is replayed whose communicator is gone")
        return Together(self.end, self.kind, self.out, self.x)

    def meet(self) -> bool:
        wire, end = self.end.wire, self.end
        if end.aborted:
            return True
        if self.number is None:
            self.number, end.rounds = end.rounds, end.rounds + 1
            self._bring()
        brought = wire.rounds[self.number]
        for rank, other in wire.ends.items():
            if other.device is not None:
                other.device.main.run_until(lambda rank=rank: rank in brought)
        if len(brought) < end.size:
            return False
        self._take([brought[rank] for rank in range(end.size)])
        return True

    def _bring(self) -> None:
        rounds, content = self.end.wire.rounds, self.x.reshape(-1)
        if len(rounds) < self.end.rounds:
            rounds.append({})
        computes = self.end._device().computes
        rounds[self.end.rounds - 1][self.end.rank] = (
            self.kind,
            content.clone() if computes else content,
        )

    def _take(self, brought: list[tuple[str, Tensor]]) -> None:
        if len({(kind, len(content)) for kind, content in brought}) > 1:
            said = [(kind, len(content)) for kind, content in brought]
            raise Misuse(f"ranks don't do the same: {said}")
        if not self.end._device().computes:
            return
        parts = [content for _, content in brought]
        if self.kind == "exchange":
            parts = [part.view(self.end.size, -1)[self.end.rank] for part in parts]
        self.out.view(-1).copy_(torch.cat(parts))
