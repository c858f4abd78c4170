"""The torch.distributed process groups through which the ranks of one model communicate.

Each communicator is created directly and owned by its `Group`. torch's global registry is not used:
there is one per process, and it would outlive the group. Tensors go by NCCL between CUDA devices;
between CPUs by gloo, but what all gather goes through shared memory where ranks are on one machine.
What the hosts have to agree on goes the same way, or through the TCP store where ranks may arrive
minutes apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllToAllOptions

from penstock.protocol.to_worker import RankGroup, Setup
from penstock_worker.forward.device import compute_device
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.rendezvous import Rendezvous, answers, split_address
from penstock_worker.parallel.shared_memory import MemoryGather, Rows, index_of, memory_gather

CONNECT = timedelta(seconds=20)
"""Timeout for setting up the connections of a group once all of its ranks have arrived."""

COLLECTIVE = timedelta(minutes=10)
"""Timeout of a collective within a step. A rank that died is noticed at once, and the engine core
notices one that is frozen; this limit is for what neither of them sees."""

KNOCK = 0.2
"""Seconds between attempts to reach the store of a group whose session still lasts."""

LOOK = 0.05
"""Seconds between checks of whether the other ranks have written their value to the store."""

# Collectives run on the compute stream. There is nothing to overlap them with, and NCCL's own
# stream would cost two events for each.
_GATHER_OPTIONS, _EXCHANGE_OPTIONS = AllgatherOptions(), AllToAllOptions()
_GATHER_OPTIONS.asyncOp = _EXCHANGE_OPTIONS.asyncOp = False

Wanted = Callable[[], bool]
"""Returns whether the session for which the group was formed still lasts."""


class Group:
    """The communicators of one rank: with its tensor-parallel ranks, and with the neighbouring
    stages."""

    _memory: MemoryGather | None = None
    """What tensor-parallel ranks of one machine gather by; None: they use their process group."""

    def __init__(
        self,
        group: RankGroup,
        rendezvous: Rendezvous,
        device: torch.device,
        wanted: Wanted,
    ) -> None:
        """Connects to the other ranks, and returns when all of them have arrived.

        `wanted` is polled while this rank waits at the store. Raises GroupLost when it returns
        False.
        """
        self.place = place = RankPlace.of(group)
        self._device = device
        self._wanted = wanted
        self._rounds = 0
        self._sent: tuple[Any, Tensor] | None = None
        self._store = self._open_store(group, rendezvous)
        self._meet("here", "")
        connect = _Connector(self._store, rendezvous.host, device)
        stage, position = place.stage, place.tensor_rank
        if device.type == "cpu" and place.tensor > 1:
            first = stage * place.tensor
            ranks = range(first, first + place.tensor)
            self._memory = memory_gather(self._meet, ranks, position, wanted)
        # None: this place has no such neighbour, or the group was left.  A caller is a member, and
        # calls only what its place has.
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
        """All-gather over the tensor-parallel ranks of this stage.

        Returns [tensor, *x.shape]: x of each rank, in rank order. All ranks must pass the same
        shape and dtype. The transfer is of raw bytes, so any dtype will do.
        """
        out = x.new_empty(self.place.tensor, *x.shape)
        if self._memory is not None:
            flat = _bytes(out).view(self.place.tensor, -1)
            self._memory.gather(_bytes(x.contiguous()).numpy(), flat.numpy())
            return out
        _wait(self._tensor._allgather_base(_bytes(out), _bytes(x.contiguous()), _GATHER_OPTIONS))
        return out

    def complete_columns(self, values: np.ndarray, parts: tuple[range, ...], first: int) -> None:
        """Gathers columns over the tensor-parallel ranks of this stage, in place.

        values: [rows, columns] float32.  parts: the columns of each rank; where ranks have computed
        the same, these are equal.  first: where this rank's stand in `values`; afterwards all are
        in their places.
        """
        if self._memory is not None and self._memory.complete_columns(values, parts, first):
            return
        own = parts[self.place.tensor_rank]
        mine = np.zeros((len(values), max(map(len, parts))), dtype=np.float32)
        mine[:, : len(own)] = values[:, first : first + len(own)]
        found = self.gather(torch.from_numpy(mine)).numpy()
        for part, theirs in zip(parts, found, strict=True):
            values[:, part.start : part.stop] = theirs[:, : len(part)]

    def exchange_rows(
        self, values: np.ndarray, held: Sequence[Rows], columns: Sequence[range]
    ) -> None:
        """Exchanges rows over the tensor-parallel ranks of this stage, in place.

        values: [rows, columns] float32.  held: the rows that each rank has computed.  columns: what
        each rank reads of all rows; afterwards this one's are there.
        """
        if self._memory is not None and self._memory.exchange_rows(values, held, columns):
            return
        own = self.place.tensor_rank
        shape = self.place.tensor, max(map(len, held)), max(map(len, columns))
        sent = np.zeros(shape, dtype=np.float32)
        mine = values[index_of(held[own])]
        for rank, part in enumerate(columns):
            sent[rank, : len(mine), : len(part)] = mine[:, part.start : part.stop]
        found = self.exchange(torch.from_numpy(sent)).numpy()
        wanted = columns[own]
        for rows, theirs in zip(held, found, strict=True):
            values[index_of(rows), wanted.start : wanted.stop] = theirs[: len(rows), : len(wanted)]

    def exchange(self, x: Tensor) -> Tensor:
        """All-to-all over the tensor-parallel ranks of this stage.

        `x` is [tensor, …] and contiguous; row r is sent to rank r. Returns a tensor of the same
        shape, in which row r was received from rank r.
        """
        out = torch.empty_like(x)
        work = self._tensor.alltoall_base(_bytes(out), _bytes(x), [], [], _EXCHANGE_OPTIONS)
        _wait(work)
        return out

    def flags(self, values: list[bool]) -> list[bool]:
        """Element-wise "or" over the tensor-parallel ranks of this stage: returns, for each value,
        whether it is true on any of them."""
        mine = torch.tensor(values, dtype=torch.uint8)
        if self._memory is not None:
            return [bool(value) for value in self.gather(mine).amax(0).tolist()]
        out = mine.new_empty(self.place.tensor * len(values))
        self._flags._allgather_base(out, mine).wait()
        return [bool(value) for value in out.view(-1, len(values)).amax(0).tolist()]

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Receives a tensor from the same tensor-parallel rank of the previous stage."""
        x = torch.empty(shape, dtype=dtype, device=self._device)
        self._before.recv([_bytes(x)], 0, 0).wait()
        return x

    def send(self, x: Tensor) -> None:
        """Sends x to the same tensor-parallel rank of the next stage. Returns before it has been
        received; x must not be modified any more."""
        self._sent_before()
        x = x.contiguous()
        self._sent = (self._after.send([_bytes(x)], 1, 0), x)

    def least(self, values: list[int]) -> list[int]:
        """Minimum over all ranks of the model, for each value. Waits for all ranks without a
        timeout."""
        found = self._meet("least", " ".join(map(str, values)))
        return [min(each) for each in zip(*(map(int, text.split()) for text in found), strict=True)]

    def cut(self) -> None:
        """Aborts the communicators between devices, so that a device that waits in a collective can
        go on.

        Called from another thread than the one that communicates. Returns at once, because the
        abort may have to wait until that thread has dropped its CUDA graphs. On a CPU there is
        nothing to do: hosts notice by themselves that a peer has gone.
        """
        if self._device.type == "cuda":
            self._abort()

    def leave(self) -> None:
        """Closes all communicators and the store. Ranks that wait for this one fail at once."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        for thread in self._abort():
            thread.join()
        self._tensor = self._flags = self._before = self._after = None
        self._sent = None
        self._store = None

    def _abort(self) -> list[threading.Thread]:
        """Aborts all communicators, each in a thread of its own, and returns the threads. It has to
        be all at once: before NCCL gives up one communicator, CUDA waits for the kernels of all of
        them."""
        made = {self._tensor, self._flags, self._before, self._after} - {None}
        threads = [threading.Thread(target=each.abort, name="hang-up") for each in made]
        for thread in threads:
            thread.daemon = True
            thread.start()
        return threads

    def _sent_before(self) -> None:
        """Waits until the previous send is complete. One message is in flight at a time, which
        bounds how far a stage runs ahead of the next."""
        if self._sent is not None:
            self._sent[0].wait()
            self._sent = None

    def _open_store(self, group: RankGroup, rendezvous: Rendezvous) -> Any:
        host, port = split_address(group.rendezvous)
        if group.rank == 0:
            taken = rendezvous.take(group.rendezvous)
            # The store's server takes ownership of the descriptor, and closes it.
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
            # Rank 0 may not have received its Setup yet.  torch's client would retry, too, but logs
            # a page of C++ frames each time.
            if not answers(host, port):
                time.sleep(KNOCK)
                continue
            store = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=CONNECT
            )
            return dist.PrefixStore(str(group.number), store)
        raise GroupLost("the session ended while the group's store was looked for")

    def _meet(self, what: str, value: str) -> list[str]:
        """Publishes this rank's value in the store, waits for those of all ranks, and returns them
        in rank order. Raises GroupLost when the session ends meanwhile."""
        self._rounds += 1
        keys = [f"{what} {self._rounds} {rank}" for rank in range(self.place.ranks)]
        self._store.set(keys[self.place.rank], value)
        while self._wanted():
            # Not the store's own wait, which logs a page of C++ frames on a timeout.
            if self._store.check(keys):
                return [self._store.get(key).decode() for key in keys]
            time.sleep(LOOK)
        raise GroupLost(f"the session ended while other ranks were waited for ({what})")


def device_of(setup: Setup) -> torch.device:
    """Returns the device whose tensors this worker exchanges with other ranks."""
    on_host = setup.attention_backend not in ("auto", "triton")
    return torch.device("cpu") if on_host else compute_device(setup)


class _Connector:
    """Creates process groups. Each has its own ranks, and its own name in the store."""

    def __init__(self, store: Any, host: str, device: torch.device) -> None:
        self._store = store
        self._host = host
        self._device = device

    def data(self, name: str, rank: int, size: int) -> Any:
        """Returns a process group for tensors of the device: NCCL on CUDA, otherwise gloo."""
        if self._device.type != "cuda":
            return self.host(name, rank, size)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = COLLECTIVE
        return dist.ProcessGroupNCCL(dist.PrefixStore(name, self._store), rank, size, options)

    def host(self, name: str, rank: int, size: int) -> Any:
        """Returns a gloo process group for CPU tensors. It is bound to the host under which the
        other ranks know this one."""
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = CONNECT
        made = dist.ProcessGroupGloo(dist.PrefixStore(name, self._store), rank, size, options)
        made._set_default_timeout(COLLECTIVE)
        return made


def _wait(work: Any) -> None:
    """Waits for a collective. `work` is None where the call was synchronous."""
    if work is not None:
        work.wait()


def _bytes(x: Tensor) -> Tensor:
    """Returns x as a flat uint8 view: every backend transfers those, whatever dtypes it
    supports."""
    return x.view(-1).view(torch.uint8)
