"""The worker's process: the main thread loads and computes, another talks to the engine core."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from penstock import logs
from penstock.config import TransportSettings
from penstock.errors import InvalidRequest, ModelNotFound, StartupError, UnsupportedModel
from penstock.protocol.from_worker import Fault, Result
from penstock.protocol.to_worker import (
    CompileGrammar,
    DropGrammar,
    Plan,
    Setup,
    Stop,
    ToWorker,
)
from penstock_worker.engine_session import EngineSession, Heard
from penstock_worker.numa import Placement

if TYPE_CHECKING:
    # Imported where a Setup arrives: torch takes a second, and the session opens meanwhile.
    from penstock_worker.loading import Loaded

log = logs.get(__name__)

FINAL = (ModelNotFound, UnsupportedModel, StartupError, InvalidRequest)
"""Failures that another try won't mend."""


THREADING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Read by the OpenMP library when it is loaded.  Its idle threads would else spin between steps, on
cores that the gateway and the engine core need."""


def main(
    engine_endpoint: str,
    rank: int,
    transport: TransportSettings | None = None,
    *,
    model_dir: str | None = None,
) -> None:
    """Serves the engine core until it says Stop, or SIGTERM or SIGINT comes.

    Dials again for as long as it lives; weights stay loaded while the engine core restarts.
    model_dir: where this worker finds the model; None: where the engine core does.
    Raises one of FINAL, after telling the engine, when the model can't be served here.
    """
    for name, value in THREADING.items():
        os.environ.setdefault(name, value)
    session = EngineSession(engine_endpoint, rank, transport or TransportSettings())
    leaving = Leaving()
    session.start()
    worker = Worker(session, model_dir)
    try:
        _preload()
        if not leaving.asked:
            worker.run()
    except BaseException:
        # What the signal interrupted may have wrapped our exception in one of its own.
        if not leaving.asked:
            raise
    finally:
        worker.close()
        session.close()
    log.info("worker stopped")


class _Leave(BaseException):
    """Raised in the main thread by a signal."""


class Leaving:
    """Raises _Leave in the main thread when SIGTERM or SIGINT comes for the first time.

    asked: whether one has come.  To be looked at beside the exception, which may come out as
    another or not at all: Python 3.11 makes a RuntimeError of what is raised while a class is made,
    and an import may be in the middle of one.
    """

    def __init__(self) -> None:
        self.asked = False
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._take)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise _Leave


def _preload() -> None:
    """Import torch and what is built on it while the session opens."""
    import penstock_worker.loading  # noqa: F401


class Worker:
    """Takes what the session hears and does it."""

    def __init__(self, session: EngineSession, model_dir: str | None = None) -> None:
        self._session = session
        self._model_dir = model_dir
        session.aside = self._take_aside
        self._placement = Placement()
        self._loaded: Loaded | None = None
        self._current: int | None = None
        """The session whose plans are executed; None after it ended or was given up."""

    def run(self) -> None:
        """Until Stop."""
        while True:
            heard = self._session.inbox.get()
            if heard.message is None:
                self._forget()
            elif isinstance(heard.message, Stop):
                return
            elif heard.first or heard.session == self._current:
                self._take(heard, heard.message)

    def close(self) -> None:
        """Give up the step that is being computed, if there is one."""
        if self._loaded is not None:
            self._loaded.runner.close()
            self._loaded = None

    def _take(self, heard: Heard, message: ToWorker) -> None:
        try:
            match message:
                case Setup() if heard.first:
                    self._set_up(heard.session, message)
                case Plan() if not heard.first:
                    self._execute(heard.session, message)
                case DropGrammar() if self._loaded is not None:
                    self._loaded.runner.grammars.drop(message.grammar)
                case _:
                    raise RuntimeError(f"{type(message).__name__} came out of turn")
        except FINAL as error:
            self._session.send(heard.session, Fault(str(error), final=True))
            raise
        except Exception as error:
            log.error("internal error", exception=True, handling=type(message).__name__)
            self._session.send(
                heard.session, Fault(f"{type(error).__name__}: {error}", final=False)
            )
            self._forget()

    def _take_aside(self, heard: Heard) -> bool:
        """Grammars are compiled while a step goes on. In the session's thread."""
        loaded, session, message = self._loaded, heard.session, heard.message
        if not isinstance(message, CompileGrammar) or loaded is None or session != self._current:
            return False
        loaded.runner.grammars.compile(
            message.grammar,
            message.definition,
            lambda answer: self._session.send(session, answer),
        )
        return True

    def _forget(self) -> None:
        """Drop everything that belongs to a session, but not the weights."""
        self._current = None
        if self._loaded is not None:
            self._loaded.runner.reset()

    def _set_up(self, session: int, setup: Setup) -> None:
        from penstock_worker.loading import load, same_model

        self._forget()
        if self._model_dir is not None:
            setup = msgspec.structs.replace(setup, model_dir=self._model_dir)
        if self._loaded is None or not same_model(self._loaded, setup):
            self.close()  # Frees its memory before the next is measured.
            self._placement.keep_to(setup.numa_node)
            self._loaded = load(setup)
        else:
            log.info("the model is loaded already")
        self._current = session
        self._session.activity.layers_done = lambda: self._layers_done()
        self._session.send(session, self._loaded.ready)

    def _layers_done(self) -> int:
        loaded = self._loaded
        return 0 if loaded is None else loaded.runner.layers_done

    def _execute(self, session: int, plan: Plan) -> None:
        if self._loaded is None:
            raise RuntimeError("a plan came before the model was loaded")
        activity = self._session.activity
        begun = time.monotonic()
        activity.session, activity.step = session, plan.step
        try:
            result = self._loaded.runner.execute(plan)
        finally:
            activity.step = None
        seconds = time.monotonic() - begun
        self._session.send(session, Result(result.step, result.slots, seconds))
