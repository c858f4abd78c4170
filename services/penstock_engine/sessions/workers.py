"""The workers: their sessions, what they have told, and whether steps get done."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec

from penstock.config.settings import ParallelSettings
from penstock.protocol.from_worker import Progress, Ready, Result
from penstock.protocol.to_worker import ToWorker
from penstock_engine.parts import HasDeadline, ReportsStatus
from penstock_engine.request.step_in_flight import UnfitResult
from penstock_engine.sessions.effects import ChunkBytes, Effects
from penstock_engine.sessions.ranks import RankSessions, WorkerSession


class Workers(HasDeadline, ReportsStatus):
    """The rank group and its health."""

    def __init__(
        self,
        parallel: ParallelSettings,
        created: int,
        progress_timeout: float,
        stuck_timeout: float,
        effects: Effects,
    ) -> None:
        """created: Unix time at which this life began.

        progress_timeout, stuck_timeout: seconds without a result or a computed layer, with work to
        do, after which the engine isn't ready, or the group is given up.  One layer of a large
        model may take seconds; a process that doesn't run at all misses its beats long before.
        """
        self.ranks = RankSessions(parallel, created)
        self.results = RankResults(parallel)
        self.faults = RankFaults(self.ranks.size)
        self.fault: str | None = None  # what the last worker said that it died of
        self.final = False  # no other worker will do better
        self.fingerprint: str | None = None
        """What workers compute with, or did last, as the next ones will; None: nobody knows."""
        self.compute_seconds = 0.0
        """Seconds that steps took since boot, by the workers' own clocks; of each step the slowest
        rank's."""
        self.tokens_computed = 0
        self.tokens_generated = 0
        self.num_encoding = parallel.tensor_parallel_size
        """Ranks that encode media: the first stage's, which are the first ones."""
        self._progress_timeout = progress_timeout
        self._stuck_timeout = stuck_timeout
        self._progress_at = 0.0
        self._effects = effects

    @property
    def ready(self) -> Ready | None:
        """What the group is; None: it isn't ready."""
        return self.ranks.ready

    @property
    def num_ready(self) -> int:
        """Workers that steps are sent to."""
        return 0 if self.ranks.ready is None else self.ranks.size

    @property
    def failing(self) -> bool:
        """Whether a rank of the group has failed, and nothing more is to be sent to any."""
        return self.faults.until is not None

    def next_deadline(self) -> float:
        """The time at which a group that is failing ends; infinity if none is."""
        until = self.faults.until
        return math.inf if until is None else until

    def status(self) -> dict[str, Any]:
        """Returns what front ends are told of the workers: fields of Status."""
        ready = self.ready
        return {
            "fingerprint": self.fingerprint,
            "arithmetic": () if ready is None else ready.arithmetic,
            "compute_seconds": round(self.compute_seconds, 6),
            "tokens_computed": self.tokens_computed,
            "tokens_generated": self.tokens_generated,
            "workers": self.num_ready,
            "aligns": ready is None or ready.aligns,
            "missing": tuple(self.ranks.missing),
        }

    def send(self, message: ToWorker) -> None:
        """Sends a message to every rank of the group, if there is one."""
        for session in self.ranks.formed:
            self._effects.to_workers.append((session, message, ()))

    def send_encoding(self, message: ToWorker, frames: tuple[ChunkBytes, ...] = ()) -> None:
        """Sends a message to every rank of the group that encodes media."""
        for session in self.ranks.formed[: self.num_encoding]:
            self._effects.to_workers.append((session, message, frames))

    def found_ready(self, now: float) -> None:
        """Notes that all ranks of the group have loaded the model."""
        self.fault, self.final = None, False
        self._progress_at = now
        if self.ready is not None:
            self.fingerprint = self.ready.fingerprint

    def progressed(self, now: float) -> None:
        """A step was settled, or there is nothing to do."""
        self._progress_at = now

    def take_progress(self, worker: WorkerSession, progress: Progress, now: float) -> None:
        """A step goes on; a worker that repeats itself is stuck."""
        if progress.layers > worker.layers:
            worker.layers = progress.layers
            self._progress_at = now

    def stuck(self, now: float) -> str:
        """Why a step in flight won't end by itself; empty: it may."""
        if self.ranks.ready is None or now - self._progress_at <= self._stuck_timeout:
            return ""
        return f"no step has made progress for {self._stuck_timeout:g} s (--stuck-timeout)"

    def health(self, now: float) -> tuple[bool, str]:
        """(ready, why not)."""
        if not self.ranks.formed:
            return False, self.fault or self._who_is_missing()
        if self.ranks.ready is None:
            loading = "worker is" if self.ranks.size == 1 else "workers are"
            return False, f"the {loading} loading the model"
        if now - self._progress_at > self._progress_timeout:
            return False, f"no step has made progress for {self._progress_timeout:g} s"
        return True, ""

    def _who_is_missing(self) -> str:
        missing = self.ranks.missing
        if len(missing) == self.ranks.size:
            return "no worker is connected"
        return f"ranks {', '.join(map(str, missing))} (of {self.ranks.size}) are not connected"


class RankResults:
    """A step is settled when every rank's result for it is there. Each rank's come in order; one
    may be ahead of another by as many steps as are in flight.

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


FAULT_PATIENCE = 1.0
"""Seconds from the first fault on.  A rank that failed has told so before it hung up, so all that
stands between two faults is their way here; one that was killed says nothing at all."""


class RankFaults:
    """Ranks fail together: when one is gone the others notice, and what they report may arrive
    before its own reason does.  The reason matters: running out of memory is nobody's fault.  So
    the first fault doesn't end the group: it ends when every rank has spoken, or after
    FAULT_PATIENCE.
    """

    def __init__(self, size: int) -> None:
        self.until: float | None = None  # when the group ends at the latest; None: none has failed
        self.own = False  # one has failed by itself, and not for want of another
        self._size = size
        self._ranks: list[int] = []

    def add(self, rank: int, now: float, *, own: bool) -> bool:
        """One has failed. Whether all have now."""
        self.own = self.own or own
        if self.until is None:
            self.until = now + FAULT_PATIENCE
        if rank not in self._ranks:
            self._ranks.append(rank)
        return len(self._ranks) == self._size

    def has(self, rank: int) -> bool:
        return rank in self._ranks

    def due(self, now: float) -> bool:
        """Whether nobody is waited for any more."""
        return self.until is not None and now >= self.until

    def clear(self) -> None:
        """A group begins anew."""
        self.until = None
        self.own = False
        self._ranks.clear()
