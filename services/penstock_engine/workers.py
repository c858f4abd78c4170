"""The worker's session: what it has told, and whether steps get done."""

from __future__ import annotations

from penstock.protocol.from_worker import Progress, Ready


class WorkerSession:
    """One rank's session.

    ready: its own message, None while it loads.  layers: its latest count of computed layers.
    """

    __slots__ = ("layers", "rank", "ready", "session")

    def __init__(self, session: bytes, rank: int) -> None:
        self.session = session
        self.rank = rank
        self.ready: Ready | None = None
        self.layers = -1


class Workers:
    """The rank group (of one, so far) and its health.

    fault: what the last worker said that it died of.  final: no other will do better.
    compute_seconds: that steps took in the workers, by their own clocks, since boot.
    progress_timeout: seconds without a result or a computed layer, with work to do, after which
    we aren't ready.  One layer of a large model may take seconds; a process that doesn't run at
    all misses its beats long before.
    """

    def __init__(self, progress_timeout: float) -> None:
        self._progress_timeout = progress_timeout
        self.current: WorkerSession | None = None
        self.fault: str | None = None
        self.final = False
        self.compute_seconds = 0.0
        self.tokens_computed = 0
        self.tokens_generated = 0
        self._progress_at = 0.0

    @property
    def ready(self) -> Ready | None:
        return self.current.ready if self.current is not None else None

    def found_ready(self, worker: WorkerSession, ready: Ready, now: float) -> None:
        worker.ready = ready
        self.fault, self.final = None, False
        self._progress_at = now

    def progressed(self, now: float) -> None:
        """A step was settled, or there is nothing to do."""
        self._progress_at = now

    def take_progress(self, worker: WorkerSession, progress: Progress, now: float) -> None:
        """A step goes on; a worker that repeats itself is stuck."""
        if progress.layers > worker.layers:
            worker.layers = progress.layers
            self._progress_at = now

    def health(self, now: float) -> tuple[bool, str]:
        """(ready, why not)."""
        if self.current is None:
            return False, self.fault or "no worker is connected"
        if self.current.ready is None:
            return False, "the worker is loading the model"
        if now - self._progress_at > self._progress_timeout:
            return False, f"no step has made progress for {self._progress_timeout:g} s"
        return True, ""
