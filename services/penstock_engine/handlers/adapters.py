"""What front ends and workers say of adapters, and what it does to requests."""

from __future__ import annotations

import string

from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock.protocol.common import (
    MAX_ADAPTER_NAME,
    MAX_ADAPTER_NAMES,
    AdapterFile,
    NamedAdapter,
)
from penstock.protocol.from_frontend import NameAdapters, Submit
from penstock.protocol.from_worker import AdapterFailed, AdapterReady
from penstock.protocol.to_frontend import Adapters
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.request.states import SequenceState
from penstock_engine.sessions.fault_attribution import MAX_DEATHS
from penstock_engine.sessions.frontends import FrontendSession
from penstock_engine.waiting.adapter_entry import AdapterEntry
from penstock_engine.waiting.adapters import LOAD_TIMEOUT

log = logs.get(__name__)

MAX_ADAPTER_PATH = 4096
"""Characters."""

DIGEST_DIGITS = 64

DEADLY = f"{MAX_DEATHS} workers died while loading the adapter; it is not loaded again"


class AdapterHandler:
    """Keeps names, and ends the requests whose adapter can't be used."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._state = state
        self._finisher = finisher

    def check(self, submit: Submit) -> None:
        """Raises InvalidRequest for an adapter that can't be, or is not to be loaded."""
        if submit.adapter is None:
            return
        if not self._state.adapters.places.count:
            raise InvalidRequest(
                "this server takes no adapters; --enable-lora enables them", param="model"
            )
        _check_file(submit.adapter)
        refused = self._state.adapters.why_refused(submit.adapter)
        if refused is not None:
            raise InvalidRequest(refused, param="model", code="invalid_adapter")

    def welcome(self, frontend: FrontendSession) -> None:
        """Answers a front end's first message: it is sent every name."""
        if self._state.adapters.places.count:
            frontend.reply(Adapters(self._state.adapter_names.all()))

    def named(self, message: NameAdapters) -> None:
        """Adapters were loaded or unloaded by name. Raises InvalidRequest for what can't be."""
        if not self._state.adapters.places.count:
            return
        if len(message.adapters) > MAX_ADAPTER_NAMES:
            raise InvalidRequest(
                f"{len(message.adapters)} adapter names were sent; at most {MAX_ADAPTER_NAMES} are "
                "allowed"
            )
        for each in message.adapters:
            _check_named(each)
        names = self._state.adapter_names
        before = [each.file.digest for each in names.all() if each.file is not None]
        changed = names.learn(message.adapters)
        if not changed:
            return
        for digest in before:
            if not names.uses(digest):
                self._state.adapters.forget_unused(digest)
        for frontend in self._state.frontends:
            frontend.reply(Adapters(changed))

    def answered(self, message: AdapterReady | AdapterFailed, rank: int, now: float) -> None:
        """Handles a rank's answer about an adapter. One that it can't use ends the requests for it,
        and no others."""
        if isinstance(message, AdapterReady):
            self._state.adapters.ready(message.adapter, rank, now)
            return
        entry = self._state.adapters.failed(message.adapter, rank, now)
        if entry is not None:
            log.warning("adapter failed", digest=message.adapter, reason=message.reason)
            why = f"the adapter can't be used: {message.reason}"
            if message.unfit:
                self._state.adapters.refuse(message.adapter, why)
            self.fail(entry, why)

    def expire(self, now: float) -> None:
        """Gives up those that take too long to load."""
        while (entry := self._state.adapters.overdue(now)) is not None:
            self.fail(entry, f"the adapter could not be loaded within {LOAD_TIMEOUT:g} s")

    def poisoned(self, entry: AdapterEntry) -> None:
        """Refuses an adapter that too many workers have died of loading."""
        self._state.adapters.refuse(entry.file.digest, DEADLY)
        self.fail(entry, DEADLY)

    def fail(self, entry: AdapterEntry, error: str) -> None:
        """Ends the requests of an adapter that failed to load, whatever else they wait for."""
        for request in list(entry.holders):
            self._finisher.end_all(
                request,
                SequenceState.FINISHED_FAILED,
                error=error,
                error_code="invalid_adapter",
            )


def _check_named(named: NamedAdapter) -> None:
    if not 1 <= len(named.name) <= MAX_ADAPTER_NAME or len(named.parent) > MAX_ADAPTER_NAME:
        raise InvalidRequest(f"an adapter's name must have 1 to {MAX_ADAPTER_NAME} characters")
    if named.stamp < 0 or named.rank < 0:
        raise InvalidRequest("an adapter's stamp and rank must not be negative")
    if named.file is not None:
        _check_file(named.file)


def _check_file(file: AdapterFile) -> None:
    digits = string.digits + "abcdef"
    if len(file.digest) != DIGEST_DIGITS or not all(each in digits for each in file.digest):
        raise InvalidRequest(f"an adapter's digest must have {DIGEST_DIGITS} hexadecimal digits")
    if not file.path.startswith("/") or len(file.path) > MAX_ADAPTER_PATH or "\0" in file.path:
        raise InvalidRequest(
            f"an adapter's path must be absolute and have at most {MAX_ADAPTER_PATH} characters"
        )
