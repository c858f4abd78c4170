"""The process groups of one forming, by torch.distributed.

Each is made by itself and belongs to nobody else: torch's own registry, of which a process has
one, would outlive a forming.  Data goes by NCCL between CUDA devices and by gloo on a CPU; what the
hosts agree on goes by gloo, or by the store while ranks may be minutes apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllToAllOptions

from penstock.protocol.to_worker import RankGroup, Setup
from penstock_worker.forward.device import CPU, compute_device
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.rendezvous import Rendezvous, answers, split_address

CONNECT = timedelta(seconds=20)
"""To make the connections of a group whose ranks have all come."""

COLLECTIVE = timedelta(minutes=10)
"""That a rank waits for another inside a step.  One that has died is noticed at once, one that is
frozen by the engine core; this is for what neither sees."""

KNOCK = 0.2
"""Seconds between looks for the store of a group that is still wanted."""

LOOK = 0.05
"""Seconds between looks at whether the others have said something there."""

# On the stream that computes: there is nothing to do beside them, and NCCL's own stream would take
# two events for each.
_ON_OUR_STREAM, _EXCHANGE_ON_OUR_STREAM = AllgatherOptions(), AllToAllOptions()
_ON_OUR_STREAM.asyncOp = _EXCHANGE_ON_OUR_STREAM.asyncOp = False

Wanted = Callable[[], bool]
"""Whether the session that the group is for still stands."""


class Group:
    """wanted: looked at while ranks wait for one another at the store."""

    def __init__(
        self,
        group: RankGroup,
        rendezvous: Rendezvous,
        device: torch.device,
        wanted: Wanted,
    ) -> None:
        self.place = place = RankPlace.of(group)
        self._device = device
        self._wanted = wanted
        self._rounds = 0
        self._sent: tuple[Any, Tensor] | None = None
        self._store = self._open_store(group, rendezvous)
        self._meet("here", "")
        connect = _Connector(self._store, rendezvous.host, device)
        stage, position = place.stage, place.tensor_rank
        # None: not of this place, or hung up.  Whoever calls is in the group, and of the place.
        self._tensor: Any = None
        self._flags: Any = None
        self._before: Any = None
        self._after: Any = None
        if place.tensor > 1:
            self._tensor = connect.data(f"stage {stage}", position, place.tensor)
            self._flags = self._tensor
            if device.type == "cuda":
                self._flags = connect.host(f"flags {stage}", position, place.tensor)
        if not place.first:
            self._before = connect.data(f"to {stage} at {position}", 1, 2)
        if not place.last:
            self._after = connect.data(f"to {stage + 1} at {position}", 0, 2)

    def gather(self, x: Tensor) -> Tensor:
        """[tensor, *x.shape]: x of each tensor rank, in their order. They agree on shape and dtype.
        Bytes are copied, whatever they mean."""
        out = x.new_empty(self.place.tensor, *x.shape)
        _finish(self._tensor._allgather_base(_bytes(out), _bytes(x.contiguous()), _ON_OUR_STREAM))
        return out

    def exchange(self, x: Tensor) -> Tensor:
        """x: [tensor, …], contiguous; row r is for tensor rank r. The same shape: row r is from
        tensor rank r."""
        out = torch.empty_like(x)
        work = self._tensor.alltoall_base(_bytes(out), _bytes(x), [], [], _EXCHANGE_ON_OUR_STREAM)
        _finish(work)
        return out

    def flags(self, values: list[bool]) -> list[bool]:
        """Each: whether any tensor rank of this stage says so."""
        mine = torch.tensor(values, dtype=torch.uint8)
        out = mine.new_empty(self.place.tensor * len(values))
        self._flags._allgather_base(out, mine).wait()
        return [bool(value) for value in out.view(-1, len(values)).amax(0).tolist()]

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """From the same tensor rank of the stage before."""
        x = torch.empty(shape, dtype=dtype, device=self._device)
        self._before.recv([_bytes(x)], 0, 0).wait()
        return x

    def send(self, x: Tensor) -> None:
        """To the same tensor rank of the stage after. Returns before it is there; x must not be
        changed any more."""
        self._sent_before()
        x = x.contiguous()
        self._sent = (self._after.send([_bytes(x)], 1, 0), x)

    def least(self, values: list[int]) -> list[int]:
        """Each: the least that any rank has. Waits for all of them, for as long as it takes."""
        found = self._meet("least", " ".join(map(str, values)))
        return [min(each) for each in zip(*(map(int, text.split()) for text in found), strict=True)]

    def cut(self) -> None:
        """Have devices give up what they say to one another. From another thread than the one that
        talks; returns at once, as the rest of it may wait for that one to drop its graphs."""
        if self._device.type == "cuda":  # Hosts see by themselves that a peer has gone.
            self._abort()

    def leave(self) -> None:
        """Hang up: whoever waits for this rank fails at once."""
        for thread in self._abort():
            thread.join()
        self._tensor = self._flags = self._before = self._after = None
        self._sent = None
        self._store = None

    def _abort(self) -> list[threading.Thread]:
        """All at once: before NCCL gives up one communicator, CUDA waits for the kernels of all."""
        made = {self._tensor, self._flags, self._before, self._after} - {None}
        threads = [threading.Thread(target=each.abort, name="hang-up") for each in made]
        for thread in threads:
            thread.daemon = True
            thread.start()
        return threads

    def _sent_before(self) -> None:
        """One message is on its way at a time: so much runs a stage ahead of the next."""
        if self._sent is not None:
            self._sent[0].wait()
            self._sent = None

    def _open_store(self, group: RankGroup, rendezvous: Rendezvous) -> Any:
        host, port = split_address(group.rendezvous)
        if group.rank == 0:
            taken = rendezvous.take(group.rendezvous)
            # The store's server takes the descriptor over, and closes it.
            store = dist.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=CONNECT,
                master_listen_fd=taken,
            )
            return dist.PrefixStore(str(group.number), store)
        while self._wanted():
            # Rank 0 may not have heard yet that it is one. Torch's own client would try again, too,
            # but with a page of C++ frames each time.
            if not answers(host, port):
                time.sleep(KNOCK)
                continue
            store = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=CONNECT
            )
            return dist.PrefixStore(str(group.number), store)
        raise GroupLost("the session ended while the group's store was looked for")

    def _meet(self, what: str, value: str) -> list[str]:
        """What each rank has to say, when all have said it."""
        self._rounds += 1
        keys = [f"{what} {self._rounds} {rank}" for rank in range(self.place.ranks)]
        self._store.set(keys[self.place.rank], value)
        while self._wanted():
            # Not the store's own wait: that logs a page when a time is over.
            if self._store.check(keys):
                return [self._store.get(key).decode() for key in keys]
            time.sleep(LOOK)
        raise GroupLost(f"the session ended while other ranks were waited for ({what})")


def device_of(setup: Setup) -> torch.device:
    """Between which devices data goes."""
    return compute_device(setup) if setup.attention_backend in ("auto", "triton") else CPU


class _Connector:
    """Makes process groups: each among its own ranks, under its own name in the store."""

    def __init__(self, store: Any, host: str, device: torch.device) -> None:
        self._store = store
        self._host = host
        self._device = device

    def data(self, name: str, rank: int, size: int) -> Any:
        """For tensors of the device."""
        if self._device.type != "cuda":
            return self.host(name, rank, size)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = COLLECTIVE
        return dist.ProcessGroupNCCL(dist.PrefixStore(name, self._store), rank, size, options)

    def host(self, name: str, rank: int, size: int) -> Any:
        """For tensors of the CPU. Bound to the host that the ranks were told."""
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = CONNECT
        made = dist.ProcessGroupGloo(dist.PrefixStore(name, self._store), rank, size, options)
        made._set_default_timeout(COLLECTIVE)
        return made


def _finish(work: Any) -> None:
    """None: there is nothing to wait for any more."""
    if work is not None:
        work.wait()


def _bytes(x: Tensor) -> Tensor:
    """x as one row of bytes: every backend copies those, whatever types it knows."""
    return x.view(-1).view(torch.uint8)
