"""The workers: their sessions, what they have reported, and whether steps get done."""

from __future__ import annotations

import math
from typing import Any

from penstock.config.settings import ParallelSettings
from penstock.protocol.from_worker import Progress, Ready
from penstock.protocol.to_worker import ToWorker
from penstock_engine.parts import HasDeadline, ReportsStatus
from penstock_engine.sessions.effects import ChunkBytes, Effects
from penstock_engine.sessions.rank_faults import RankFaults
from penstock_engine.sessions.ranks import RankResults, RankSessions, WorkerSession


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
        """The workers' fingerprint, or the last ones', as the next ones' will be; None: not
        known."""
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
        """Returns the status of the workers for front ends: fields of Status."""
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
