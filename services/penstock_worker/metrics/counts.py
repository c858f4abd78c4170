"""What the worker's main thread counts, a few additions a step."""

from __future__ import annotations

from collections.abc import Callable

from penstock.metrics.histogram import Histogram
from penstock.process import logs
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.metrics.hand_over import HandOverCounts
from penstock_worker.stores.peers.counts import TransferCounts

log = logs.get(__name__)

STEP_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""The engine core's own bounds, so that both can be laid one over the other."""


class WorkerCounts:
    """Since the process began; written by the main thread, read by others.

    model: what requests call it; empty before the first session.  load_seconds, kv_bytes: of the
    model that is loaded, 0 before.  late_compilations: kernels that a model's rehearsal had missed.
    disk_blocks: what its tier on disk counts.  transfers: of blocks between it and other workers.
    hand_over: of experts in the host's memory.
    """

    def __init__(self) -> None:
        self.model = ""
        self.sessions = 0
        self.load_seconds = 0.0
        self.kv_bytes = 0
        self.late_compilations = 0
        self.tokens = 0
        self.disk_blocks: Callable[[], dict[str, int]]
        self.transfers: Callable[[], TransferCounts]
        self.forget_features()
        self.busy_seconds = 0.0
        self.step_seconds = Histogram(STEP_SECONDS)

    def forget_features(self) -> None:
        """Nothing is counted by features any more, until they say where."""
        self.disk_blocks, self.transfers = dict, TransferCounts
        self.hand_over = HandOverCounts()

    def stepped(self, plan: Plan, result: Result) -> None:
        """A step was computed."""
        self.tokens += sum([work.count for work in plan.work])
        if plan.extra_steps:
            self.tokens += sum([len(outcome.more) for outcome in result.slots])
        else:
            self.tokens += sum([outcome.drafted for outcome in result.slots])
        self.busy_seconds += result.compute_seconds
        self.step_seconds.observe(result.compute_seconds)

    def compiled_late(self, kernel: str) -> None:
        """A kernel was compiled after the model was ready."""
        self.late_compilations += 1
        log.warning("a kernel was compiled while the model served", kernel=kernel)
