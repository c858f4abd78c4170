"""What the worker does with each message of the engine core, in the main thread."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from penstock.config.settings import TransportSettings
from penstock.errors import InvalidRequest, ModelNotFound, StartupError, UnsupportedModel
from penstock.process import logs
from penstock.process.start_phases import START
from penstock.protocol.from_worker import Asleep, Fault, FromWorker, Result, SlotResult
from penstock.protocol.to_worker import Plan, Setup, Sleep, Stop, ToWorker, WorkerCall
from penstock_worker.engine_session import CoreSession, Heard
from penstock_worker.left_over import HUNG_SECONDS, end_hung
from penstock_worker.machine import gc_tuning
from penstock_worker.machine.numa import NUMAPlacement
from penstock_worker.metrics.counts import WorkerCounts
from penstock_worker.metrics.phases import Phases
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.membership import Membership
from penstock_worker.parallel.place import RankPlace
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory
from penstock_worker.steps.in_flight import StepsInFlight

if TYPE_CHECKING:
    # Imported where a Setup arrives: it takes a while, and the session opens meanwhile.
    from penstock_worker.extensions import ExtensionMethods
    from penstock_worker.loading.loaded import Loaded


log = logs.get(__name__)

FINAL = (ModelNotFound, UnsupportedModel, StartupError, InvalidRequest)
"""Failures that a retry can't fix."""


class Worker:
    """Handles the messages of the session. phases: times a runner's parts."""

    def __init__(
        self,
        session: CoreSession,
        phases: Phases,
        model_dir: str | None,
        membership: Membership,
        transport: TransportSettings | None = None,
    ) -> None:
        self.counts = WorkerCounts()
        self.phases = phases
        self._session = session
        self._model_dir = model_dir
        self._membership = membership
        self._transport = transport or TransportSettings()
        membership.computing = lambda: session.activity.step is not None
        session.aside = self._take_aside
        session.over = membership.over
        self._placement = NUMAPlacement()
        self._loaded: Loaded | None = None
        self._extensions: ExtensionMethods | None = None
        """The extensions of the model that is loaded."""
        self._current: int | None = None
        """The session whose plans are executed; None after it ended or was given up."""
        self._setting_up = False
        self._asleep = False
        self._steps = StepsInFlight(session, self._tell)
        self._place = RankPlace()

    def run(self) -> None:
        """Runs until Stop."""
        while True:
            heard = self._steps.hear()
            if heard is None:
                with self._faults(self._steps.session, "a step in flight"):
                    self._steps.collect()
            elif heard.message is None:
                self._forget()
            elif isinstance(heard.message, Stop):
                return
            elif heard.first or heard.session == self._current:
                self._take(heard, heard.message)

    def close(self) -> None:
        """Give up the step that is being computed, if there is one, and the group."""
        self._membership.close()
        self._drop()

    def _drop(self) -> None:
        if self._loaded is not None:
            self._loaded.kernels.tell_of_compilations(None)
            self._loaded.runner.close()
            self._loaded = self._extensions = None

    def idle_reason(self) -> str | None:
        """Why no step could be computed now; None: it could. From any thread."""
        if self._current is not None:
            return None
        if self._setting_up:
            return "the model is being loaded"
        if self._asleep:
            return "the model sleeps"
        return "no session with an engine core"

    def _take(self, heard: Heard, message: ToWorker) -> None:
        recoverable = not isinstance(message, Setup) or message.trial
        with self._faults(heard.session, type(message).__name__, recoverable=recoverable):
            match message:
                case Setup() if heard.first:
                    self._setting_up = True
                    try:
                        with _trial() if message.trial else nullcontext():
                            self._set_up(heard.session, message)
                    finally:
                        self._setting_up = False
                case Sleep(level) if heard.first:
                    self._sleep(heard.session, level)
                case Plan() if not heard.first:
                    self._begin(heard.session, message)
                case WorkerCall() if self._extensions is not None and self._loaded is not None:
                    self._loaded.runner.features.weights_change()  # It may change them.
                    self._session.send(heard.session, self._extensions.answer(message))
                case _ if self._loaded is not None and not heard.first:
                    self._loaded.runner.receive(message, self._answer(heard.session))
                case _:
                    raise RuntimeError(f"{type(message).__name__} was not expected in this state")

    @contextmanager
    def _faults(self, session: int, handling: str, *, recoverable: bool = True) -> Iterator[None]:
        """Reports failures to the session's engine core, and ends the session. recoverable: the
        process stays for another session; otherwise it ends, so that a model that can't be loaded
        is retried at the supervisor's pace of restarting workers."""
        try:
            yield
        except FINAL as error:
            self._session.send(session, Fault(str(error), final=True))
            raise
        except Exception as error:
            if _interrupted(error):
                raise
            if isinstance(error, GroupLost):
                log.warning("the group of ranks has ended", reason=str(error))
            else:
                log.error("internal error", exception=True, handling=handling)
            self._session.send(session, _fault(error))
            if isinstance(error, DeviceLost) or not (recoverable or isinstance(error, GroupLost)):
                raise
            self._forget()

    def _take_aside(self, heard: Heard) -> bool:
        """Passes a message to its feature while a step goes on. In the session's thread."""
        loaded, session = self._loaded, heard.session
        if loaded is None or heard.message is None or session != self._current:
            return False
        features, answer = loaded.runner.features, self._answer(session)
        return features.hear(heard.message, heard.frames, answer)

    def _answer(self, session: int) -> Callable[[FromWorker], None]:
        """Sends to that session's engine core. From any thread."""
        return lambda answer: self._session.send(session, answer)

    def _forget(self) -> None:
        """Drop everything that belongs to a session, but not the weights."""
        self._asleep = False
        self._current = None
        self._steps.clear()
        self._membership.leave()
        if self._loaded is not None:
            self._loaded.runner.reset()

    def _set_up(self, session: int, setup: Setup) -> None:
        from penstock_worker.loading.again import ready_again, same_model
        from penstock_worker.loading.load import load

        self._forget()
        self.counts.model = setup.served_name
        self.counts.sessions += 1
        if self._model_dir is not None:
            if setup.trial:
                raise UnfitWeights("a worker must have its own --model-dir")
            setup = msgspec.structs.replace(setup, model_dir=self._model_dir)
        # Before memory is shared with other ranks, and weights and KV are allocated.
        self._placement.keep_to(setup.numa_nodes)
        ranks = self._membership.join(setup, lambda: self._session.stands(session))
        hung = self._steps.await_forgotten(HUNG_SECONDS)
        if hung is not None:
            end_hung(hung)  # A device's queue: this thread can't hang in it before it waits.
        # On trial, also the same ones: an extension's method may have changed what is loaded.
        if self._loaded is None or setup.trial or not same_model(self._loaded, setup):
            if self.counts.sessions > 1:
                self._drop()
                gc_tuning.let_go()  # What was loaded before, even in part, must be free by now.
            START.passed("engine core")
            self._loaded = load(setup, self.phases, ranks, self._transport)
            self._extensions = _extensions_of(self._loaded, ranks.place)
            gc_tuning.keep()
            ready = self._loaded.ready
            self._loaded.kernels.tell_of_compilations(self.counts.compiled_late)
            self.counts.load_seconds = self._loaded.ready.load_seconds
            self.counts.kv_bytes = self._loaded.kv_bytes
            self.counts.forget_features()
            self._loaded.runner.features.show_counts(self.counts)
            START.passed("drafts and grammars")
            START.done()
        else:
            log.info("the model is loaded already")
            ready = ready_again(self._loaded, ranks)
        self._place = ranks.place
        self._current = session
        self._session.activity.layers_done = lambda: self._layers_done()
        self._session.send(session, ready)

    def _sleep(self, session: int, level: int) -> None:
        """Gives memory back; the weights stay where level 1 asks for no more, and can."""
        from penstock_worker.machine.memory import give_back_freed

        self._forget()
        keeps = None if self._loaded is None or level > 1 else self._loaded.give_back
        if keeps is None:
            self._drop()
            gc_tuning.let_go()
            self.counts.kv_bytes = 0
        else:
            keeps()
        give_back_freed()
        self._asleep = True
        self._session.send(session, Asleep())

    def _layers_done(self) -> int:
        loaded = self._loaded
        return 0 if loaded is None else loaded.runner.layers_done

    def _begin(self, session: int, plan: Plan) -> None:
        if self._loaded is None:
            raise RuntimeError("a plan came before the model was loaded")
        self._steps.begin(session, plan, self._loaded.runner)

    def _tell(self, session: int, plan: Plan, result: Result) -> None:
        self.counts.stepped(plan, result)
        self._session.send(session, report(result, self._place, result.compute_seconds))


class UnfitWeights(Exception):
    """Other weights than those that were served can't be loaded."""


@contextmanager
def _trial() -> Iterator[None]:
    """What would be final for a model that was never served isn't for one that is tried."""
    try:
        yield
    except FINAL as error:
        raise UnfitWeights(str(error)) from error


def _extensions_of(loaded: Loaded, place: RankPlace) -> ExtensionMethods:
    from penstock_worker.extensions import ExtensionMethods, WorkerContext

    setup = loaded.setup
    return ExtensionMethods(
        setup.worker_extensions,
        WorkerContext(
            rank=place.rank,
            ranks=place.ranks,
            served_name=setup.served_name,
            model_dir=setup.model_dir,
            device=loaded.ready.device,
            loaded=loaded,
        ),
    )


def _interrupted(error: BaseException) -> bool:
    """Whether it comes of what is no fault, as the exception of a signal: Python 3.11 wraps what is
    raised while a class is made, and a model's modules may just be imported."""
    chain: BaseException | None = error
    while isinstance(chain, Exception):
        chain = chain.__cause__ or chain.__context__
    return chain is not None


def _fault(error: Exception) -> Fault:
    return Fault(
        f"{type(error).__name__}: {error}",
        final=False,
        out_of_memory=isinstance(error, OutOfDeviceMemory),
        rank_lost=isinstance(error, GroupLost),
    )


_DEFERRED, _FAILED = -1, -2
"""What the hash has in place of a token id."""

BITS = 63
"""Width of the hash in bits. It must fit a signed 64-bit integer, which every MessagePack reader
has."""


def report(result: Result, place: RankPlace, seconds: float) -> Result:
    """Returns what this rank sends. The lead rank sends the results of all slots; with several
    ranks, each sends a hash of what was sampled, by which the engine core checks that they agree.

    `result` is all that this rank knows of the step.
    """
    if place.ranks == 1:
        return msgspec.structs.replace(result, compute_seconds=seconds)
    slots = result.slots if place.lead else []
    said = sampled_hash(result.slots)
    return msgspec.structs.replace(result, slots=slots, compute_seconds=seconds, sampled=said)


def sampled_hash(slots: list[SlotResult]) -> int:
    """Returns a hash of which slot got which token, or why it got none; 0 if no slot was due for
    one."""
    pairs = [(each.slot, token) for each in slots for token in (_outcome(each), *each.more)]
    said = b"".join(struct.pack("<qq", slot, token) for slot, token in pairs if token is not None)
    if not said:
        return 0
    digest = hashlib.blake2b(said, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - BITS)


def _outcome(slot: SlotResult) -> int | None:
    if slot.error is not None:
        return _FAILED
    return _DEFERRED if slot.deferred else slot.token
