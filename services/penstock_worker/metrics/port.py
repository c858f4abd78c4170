"""The worker's metrics port. Its model computes in the main thread; a step may take long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client.core import Metric

from penstock.config.settings import MetricsSettings
from penstock.metrics.families import CONTENT_TYPE, Families, keyed, renderer
from penstock.metrics.port import Page, Reply, bind, health_page, serving
from penstock_worker.metrics.counts import WorkerCounts
from penstock_worker.metrics.hand_over import HandOverCounts
from penstock_worker.metrics.phases import Phases
from penstock_worker.stores.peers.counts import TransferCounts

LIVE_AGE = 10.0
READY_AGE = 2.0
"""Seconds without a turn of the session's thread, beyond the pause between two beats."""


class WorkerHealth:
    """turned: when the session's thread turned last, by time.monotonic.  longest_wait: seconds that
    it waits at most.  idle: why no step could be computed now; None: it could."""

    def __init__(
        self,
        turned: Callable[[], float],
        longest_wait: float,
        idle: Callable[[], str | None],
    ) -> None:
        self._turned = turned
        self._longest_wait = longest_wait
        self._idle = idle

    def dead(self) -> str | None:
        """Why the process is as good as dead; None: it lives."""
        if not threading.main_thread().is_alive():
            return "the compute thread has ended"
        return self._still(LIVE_AGE)

    def unready(self) -> str | None:
        """Why it serves no engine core now; None: it does."""
        return self._still(READY_AGE) or self._idle()

    def _still(self, most: float) -> str | None:
        age = time.monotonic() - self._turned()
        if age <= most + self._longest_wait:
            return None
        return f"the session thread's loop has not turned for {age:.1f} s"


@contextmanager
def metrics_port(
    counts: WorkerCounts, phases: Phases, health: WorkerHealth, settings: MetricsSettings, port: int
) -> Iterator[None]:
    """Serves it meanwhile. Raises StartupError where the port can't be had."""
    render = renderer(lambda: families_of(counts, phases))
    pages: dict[str, Page] = {
        "/metrics": lambda: Reply(200, render(), CONTENT_TYPE),
        "/health/live": health_page(health.dead),
        "/health/ready": health_page(health.unready),
    }
    with serving(bind(settings.metrics_host, port, "--worker-metrics-port"), pages):
        yield


def families_of(counts: WorkerCounts, phases: Phases) -> Iterator[Metric]:
    """Yields all metric families of the worker."""
    families = Families(counts.model)
    yield families.histogram(
        "penstock:worker_step_seconds", "Time of a step in this worker.", counts.step_seconds
    )
    yield families.counters(
        "penstock:worker_phase_seconds",
        "Time in parts of steps, each computing thread's own: forward passes, sampling, waiting "
        "for grammars' masks, copying KV blocks, encoding media.",
        ["phase"],
        keyed(phases.seconds),
    )
    for name, words, value in (
        ("busy_seconds", "Time in steps.", counts.busy_seconds),
        ("tokens", "Tokens computed, of prompts and outputs.", counts.tokens),
        ("sessions", "Sessions with an engine core.", counts.sessions),
        (
            "late_compilations",
            "Kernels compiled after the model was ready, while steps waited; 0 unless the trial "
            "runs missed some.",
            counts.late_compilations,
        ),
    ):
        yield families.counter(f"penstock:worker_{name}", words, value)
    yield families.gauge(
        "penstock:worker_load_seconds", "Time of loading the model, by phase.", counts.load_seconds
    )
    yield families.counters(
        "penstock:worker_disk_kv_blocks",
        "KV blocks of the disk tier. written; left_out: not written, because writing was behind or "
        "failed; damaged: found damaged when read.",
        ["result"],
        keyed(counts.disk_blocks()),
    )
    yield from _transfers(families, counts.transfers())
    yield from _hand_over(families, counts.hand_over)
    yield families.gauge("penstock:worker_kv_bytes", "Memory of the KV pool.", counts.kv_bytes)


def _hand_over(families: Families, counts: HandOverCounts) -> Iterator[Metric]:
    yield families.counters(
        "penstock:worker_host_expert_rows",
        "Rows of experts in the host's memory, each as often as it had such experts, by where they "
        "were computed: host, or card for experts that were copied there.",
        ["place"],
        keyed(counts.rows()),
    )
    yield families.counters(
        "penstock:worker_host_expert_bytes",
        "Bytes between host and card for these: down (rows), up (results), experts.",
        ["what"],
        keyed(counts.moved_bytes()),
    )
    yield families.counters(
        "penstock:worker_host_expert_seconds",
        "Time of these transfers by the card's clock, and of computing on the host.",
        ["what"],
        keyed(counts.seconds()),
    )
    yield families.counter(
        "penstock:worker_host_experts_copied",
        "Experts copied to the card for the rows of a step.",
        counts.experts_copied,
    )


def _transfers(families: Families, counts: TransferCounts) -> Iterator[Metric]:
    yield families.counters(
        "penstock:worker_peer_kv_blocks",
        "KV blocks exchanged with workers of other engine cores. fetched; gone: evicted by the "
        "other worker before the fetch; served: sent to others.",
        ["result"],
        keyed(counts.blocks()),
    )
    yield families.counters(
        "penstock:worker_peer_kv_bytes",
        "Bytes of these blocks.",
        ["direction"],
        keyed(counts.moved_bytes()),
    )
    yield families.counter(
        "penstock:worker_peer_kv_faults",
        "Fetches that failed because another worker didn't answer in time or sent an invalid "
        "answer.",
        counts.faults,
    )
