"""A front end that has other weights loaded."""

from __future__ import annotations

from penstock.process import logs
from penstock.protocol.common import MAX_CALL_SECONDS
from penstock.protocol.from_frontend import ReplaceWeights
from penstock_engine.core_state import CoreState
from penstock_engine.sessions.frontends import FrontendSession
from penstock_engine.sessions.weights import misfit

log = logs.get(__name__)


class WeightsHandler:
    """Applies weight changes that fit: has workers load them, and reverts those that they can't
    load."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def asked(self, frontend: FrontendSession, message: ReplaceWeights, now: float) -> bool:
        """Returns whether the change is to be made; else the front end gets the reason."""
        weights = self._state.weights
        wrong = misfit(self._state.facts.model, message.model)
        if not 0 < message.seconds <= MAX_CALL_SECONDS:
            wrong = f"timeout is {message.seconds:g}; allowed: up to {MAX_CALL_SECONDS:g} s"
        if wrong is not None:
            weights.refuse(frontend.session, message.call, "invalid", wrong)
            return False
        if not weights.ask(frontend.session, message, now):
            why = "other weights are already being loaded; try again later"
            weights.refuse(frontend.session, message.call, "unavailable", why)
            return False
        log.info("new weights are requested", by=frontend.name, folder=message.folder)
        return True

    def begin(self) -> None:
        """The group that is formed next gets the new ones."""
        self._state.kept_answers.forget_ended()
        self._state.workers.fingerprint = None
        self._state.facts = self._state.weights.begin(self._state.facts, self._state.clock.now)

    def promise(self) -> None:
        """A model that sleeps gets them when it wakes."""
        if self._state.weights.promise():
            folder = self._state.facts.folder
            log.info("the weights will be loaded when the model wakes", folder=folder)

    def loaded(self) -> None:
        """The group has loaded what it was asked to load."""
        if self._state.weights.loaded():
            model = self._state.facts.model
            log.info("weights were replaced", source=model.source, digest=model.digest[:16])

    def expire(self, now: float) -> None:
        """Gives up a change that couldn't begin in time, or that no worker has come for."""
        self._state.weights.give_up(now)
        if why := self._state.weights.lonely(now):
            self._take_back(why, heard=True)

    def failed(self, reason: str, *, heard: bool) -> None:
        """The group has ended unexpectedly. heard: whether one of its ranks gave a reason."""
        if not self._state.sleep.group_level:  # Else it had nothing to load.
            self._take_back(reason, heard=heard)

    def _take_back(self, reason: str, *, heard: bool) -> None:
        former = self._state.weights.failed(reason, heard=heard)
        if former is not None:
            log.error("the new weights can't be loaded", reason=reason)
            self._state.workers.fingerprint = None
            self._state.facts = former
