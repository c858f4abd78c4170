"""The ranks that compute one model: which of them are there, what they form together, and the
results of their common steps."""

from __future__ import annotations

from collections import deque

import msgspec

from penstock.config.settings import ParallelSettings
from penstock.protocol.from_worker import Ready, Result, WorkerHello
from penstock.protocol.to_worker import RankGroup
from penstock_engine.request.step_in_flight import UnfitResult

MEDIA = ("media_rows", "whole_spans", "media_bytes", "encoder_rows")
"""Fields of Ready in which ranks must agree about media."""

FORMINGS_A_SECOND = 1000
"""Groups that one life may form, for each second after which the next one may begin."""


class Disagreement(Exception):
    """The ranks of a group don't say the same where they must."""


class WorkerSession:
    """The session of one rank's worker."""

    __slots__ = ("layers", "life", "rank", "ready", "rendezvous", "session", "version")

    def __init__(self, session: bytes, hello: WorkerHello, version: int) -> None:
        self.session = session
        self.rank = hello.rank
        self.life = hello.life
        self.rendezvous = hello.rendezvous  # where the other ranks reach it
        self.version = version  # of the protocol
        self.ready: Ready | None = None  # None while it loads
        self.layers = -1  # that it has computed, as it said last


class RankSessions:
    """A group is formed when every rank has a session, and is one until it is disbanded: a rank
    alone is nothing.  A model on one worker is a group of one.
    """

    def __init__(self, parallel: ParallelSettings, created: int) -> None:
        """created: Unix time at which this life began."""
        self.size = parallel.ranks  # of a group
        self.formed: tuple[bytes, ...] = ()
        """Sessions in the order of ranks; empty while there is no group."""
        self.ready: Ready | None = None  # what the group is, once all of it has loaded
        self.number = created * FORMINGS_A_SECOND
        """Number of the latest forming; higher than any before, also than those of an earlier life,
        which workers may remember."""
        self._parallel = parallel
        self._there: dict[bytes, WorkerSession] = {}

    def refusal(self, hello: WorkerHello) -> str | None:
        """Why there is no place for a worker; None: there is."""
        if self.size == 1 and hello.rank != 0:
            return f"this engine core has one worker, rank 0; there is no rank {hello.rank}"
        if not 0 <= hello.rank < self.size:
            return f"this engine has ranks 0 to {self.size - 1}; there is no rank {hello.rank}"
        if self.size > 1 and not hello.rendezvous:
            return f"this engine has {self.size} ranks; each must give an address for the others"
        return None

    def find(self, session: bytes) -> WorkerSession | None:
        """The worker of a session; None: it has no place, or has lost it."""
        return self._there.get(session)

    def holder(self, rank: int) -> WorkerSession | None:
        """The session of the worker that has this rank; None if there is none."""
        return next((one for one in self._there.values() if one.rank == rank), None)

    @property
    def missing(self) -> list[int]:
        """Ranks without a session."""
        there = {one.rank for one in self._there.values()}
        return [rank for rank in range(self.size) if rank not in there]

    def join(self, worker: WorkerSession) -> list[tuple[WorkerSession, RankGroup | None]]:
        """Takes a place that is free. Where that forms the group: all of it, in the order of ranks,
        each with what its Setup says of the group."""
        self._there[worker.session] = worker
        if len(self._there) < self.size:
            return []
        workers = sorted(self._there.values(), key=lambda one: one.rank)
        self.formed = tuple(one.session for one in workers)
        self.number += 1
        return [(one, self._group(one.rank, workers[0].rendezvous)) for one in workers]

    def _group(self, rank: int, rendezvous: str) -> RankGroup | None:
        if self.size == 1:
            return None
        return RankGroup(
            tensor=self._parallel.tensor_parallel_size,
            pipeline=self._parallel.pipeline_parallel_size,
            rank=rank,
            rendezvous=rendezvous,
            number=self.number,
        )

    def leave(self, worker: WorkerSession) -> None:
        """Forgets the session of a worker that waited for a group and has left."""
        del self._there[worker.session]

    def disband(self) -> dict[int, str]:
        """The group is over, and with it each session of it. Returns each rank's life."""
        lives = {one.rank: one.life for one in self._there.values()}
        self._there.clear()
        self.formed = ()
        self.ready = None
        return lives

    def loaded(self, worker: WorkerSession, ready: Ready) -> Ready | None:
        """One rank has. What the group is, once all have. Raises Disagreement."""
        worker.ready = ready
        workers = [self._there[session] for session in self.formed]
        answers = [one.ready for one in workers if one.ready is not None]
        for name in ("num_kv_blocks", "num_host_blocks", "fingerprint", "kv_groups", *MEDIA):
            values = list(dict.fromkeys(getattr(one, name) for one in answers))
            if len(values) > 1:
                raise Disagreement(f"ranks disagree: {name} is {values[0]} and {values[1]}")
        if len(answers) < self.size:
            return None
        self.ready = msgspec.structs.replace(
            answers[0],
            device=", ".join(dict.fromkeys(one.device for one in answers)),
            load_seconds=max(one.load_seconds for one in answers),
            copy_seconds=max(one.copy_seconds for one in answers),
        )
        return self.ready


class RankResults:
    """Results of the ranks that compute a step together. A step is settled when every rank's result
    for it is there. Each rank's come in order; one may be ahead of another by as many steps as are
    in flight.

    latest: the last step's result, put together.
    """

    def __init__(self, parallel: ParallelSettings) -> None:
        self.latest: Result | None = None
        self._last_stage = parallel.ranks - parallel.tensor_parallel_size
        """First rank of the last stage, which leads the group."""
        self._step = 0
        self._ahead: list[deque[Result]] = [deque() for _ in range(parallel.ranks)]

    def clear(self) -> None:
        """A group begins anew."""
        self._step = 0
        for results in self._ahead:
            results.clear()

    def take(self, rank: int, result: Result, in_flight: int) -> Result | None:
        """The step that this result makes complete; None: others have to come first.

        in_flight: steps that were sent and are not settled.  Raises UnfitResult.
        """
        if len(self._ahead) == 1:
            self.latest = result
            return result
        mine = self._ahead[rank]
        expected = self._step + len(mine) + 1
        if result.step != expected or len(mine) >= in_flight:
            sent = "was to come" if len(mine) < in_flight else "was not expected"
            raise UnfitResult(
                f"rank {rank} returned a result for step {result.step}; {expected} {sent}"
            )
        if result.slots and rank != self._last_stage:
            raise UnfitResult(
                f"rank {rank} returned results for slots; only rank {self._last_stage} may"
            )
        mine.append(result)
        if not all(self._ahead):
            return None
        self._step += 1
        self.latest = self._merged([results.popleft() for results in self._ahead])
        return self.latest

    def _merged(self, results: list[Result]) -> Result:
        """The lead's, and the time of the rank that took longest. By rank."""
        last_stage = results[self._last_stage :]
        if any(result.sampled != last_stage[0].sampled for result in last_stage):
            raise UnfitResult(
                f"ranks disagree on what step {self._step} sampled: "
                f"{[result.sampled for result in last_stage]}"
            )
        slowest = max(result.compute_seconds for result in results)
        return msgspec.structs.replace(last_stage[0], compute_seconds=slowest)
