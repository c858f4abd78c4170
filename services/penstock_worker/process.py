"""The worker's process: the main thread loads and computes, another talks to the engine core."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from penstock.config.settings import MetricsSettings, TransportSettings
from penstock.process import logs
from penstock.process.start_phases import START
from penstock.process.uncollected import uncollected
from penstock_worker.engine_session import CoreSession
from penstock_worker.machine.gpu_driver import has_driver
from penstock_worker.machine.torch_import import defer_torch, import_torch, run_torch_within
from penstock_worker.metrics.phases import UNWATCHED, Phases
from penstock_worker.parallel.membership import Membership
from penstock_worker.worker import Worker

log = logs.get(__name__)

THREADING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
"""Read by the OpenMP library and numpy's OpenBLAS when they are loaded.  The idle threads of the
former would else spin between steps, on cores that the gateway and the engine core need; the latter
would start a thread for each core, and nothing here multiplies by numpy."""

PLUGINS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Read by torch when it is imported, which would else go through the metadata of every package that
is installed, for devices that no backend here computes on."""

RANKS = {
    # Sessions say when a group is over, and then it is cut.  Without these, torch would end the
    # process by itself where NCCL reports an error, or by clocks of its own.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # While capturing CUDA graphs, ranks don't wait for each other: a capture may fail on one of
    # them.
    "NCCL_GRAPH_REGISTER": "0",
    "NCCL_RUNTIME_CONNECT": "0",
    # A peer that leaves is logged in this worker's words, without pages of frames.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Read by torch and NCCL when they are loaded, or when a group is formed."""

NO_METRICS = MetricsSettings()


def main(
    engine_endpoint: str,
    rank: int,
    transport: TransportSettings | None = None,
    *,
    metrics: MetricsSettings = NO_METRICS,
    model_dir: str | None = None,
    rank_host: str = "127.0.0.1",
) -> None:
    """Serves the engine core until it says Stop, or SIGTERM or SIGINT comes.

    Dials again for as long as it lives; weights stay loaded while the engine core restarts.
    model_dir: where this worker finds the model; None: where the engine core does.
    rank_host: this machine's address, at which other ranks of the model reach it.
    Raises one of `worker.FINAL`, after telling the engine, when the model can't be served here;
    StartupError also where the metrics port, or one at rank_host, can't be had.
    """
    _set_environment()
    transport = transport or TransportSettings()
    membership = Membership(rank_host)
    membership.address()  # Now, so that a bad host is reported here.
    session = CoreSession(engine_endpoint, rank, transport, membership.address)
    port = metrics.worker_metrics_port
    worker = Worker(
        session, UNWATCHED if port is None else Phases(), model_dir, membership, transport
    )
    with _observing(worker, session, transport, metrics, rank):
        _work(worker, session)
    log.info("worker stopped")


def _work(worker: Worker, session: CoreSession) -> None:
    signals = Signals()
    session.start()
    try:
        preload()
        START.passed("imports")
        with signals.interrupting():
            worker.run()
    except BaseException:
        # What the signal interrupted may have wrapped our exception in one of its own.
        if not signals.asked:
            raise
    finally:
        if signals.asked:
            session.leave()  # First: what is given up below may look like a fault to others.
        worker.close()
        session.close()


def _observing(
    worker: Worker,
    session: CoreSession,
    transport: TransportSettings,
    metrics: MetricsSettings,
    rank: int,
) -> AbstractContextManager[None]:
    """The metrics port, if one is wanted."""
    port = metrics.worker_metrics_port
    if port is None:
        return nullcontext()
    from penstock_worker.metrics.port import WorkerHealth, metrics_port

    health = WorkerHealth(lambda: session.turned, transport.beat_interval, worker.idle_reason)
    # Port 0 is any free one for each.
    return metrics_port(worker.counts, worker.phases, health, metrics, port and port + rank)


class _Leave(BaseException):
    """Raised in the main thread by a signal."""


class Signals:
    """Notes SIGTERM and SIGINT, and within `interrupting` raises _Leave in the main thread when the
    first one comes.

    Not before: torch's own initialisation calls Python, and ends the process where that raises. Not
    after: what is released at the end would stay, and a finaliser that the interpreter calls can't
    pass an exception on, so it would be printed as a fault.
    asked: whether one has come.  To be checked in addition to the exception, which may come out as
    another or not at all: Python 3.11 makes a RuntimeError of what is raised while a class is made,
    and an import may be in the middle of one.
    """

    def __init__(self) -> None:
        self.asked = self._raises = False
        run_torch_within(self.held)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._take)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        if self._raises:
            raise _Leave

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defers interrupts of the main thread until the context ends."""
        if not self._raises or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._raises = False
        yield
        self._raises = True
        if self.asked:
            raise _Leave

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raises _Leave now if a signal has come, and when one comes within."""
        self._raises = True
        try:
            if self.asked:
                raise _Leave
            yield
        finally:
            self._raises = False


def _set_environment() -> None:
    for name, value in (THREADING | PLUGINS | RANKS).items():
        os.environ.setdefault(name, value)


def preload() -> None:
    """Imports what loads models, torch when it is asked for: while the session opens, or before
    there is one. All of it stays, so that the garbage collector needn't look at it, neither
    meanwhile (a tenth of the time) nor later."""
    _set_environment()
    with uncollected():
        if has_driver():
            import_torch()  # Concurrently with the session's opening, which needs it.
        defer_torch()
        import penstock_worker.loading.load  # noqa: F401

        gc.freeze()
