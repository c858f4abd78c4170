"""Handles workers' messages about grammars, and the sequences that wait for them."""

from __future__ import annotations

from penstock.protocol.common import ErrorCode
from penstock.protocol.from_worker import GrammarFailed
from penstock.protocol.to_frontend import Prepared
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.request.request import Request
from penstock_engine.request.states import SequenceState
from penstock_engine.waiting.grammar_entry import GrammarEntry


class GrammarHandler:
    """Lets sequences run whose grammar is ready, and ends those whose grammar there will not be."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._state = state
        self._finisher = finisher

    def ready(self, number: int, rank: int, now: float) -> None:
        """A rank has compiled one."""
        prepared: dict[Request, None] = {}
        for sequence in self._state.grammars.ready(number, rank, now):
            prepared[sequence.request] = None
            self._state.scheduling.add(sequence)
        for request in prepared:
            frontend = self._state.frontends.get(request.session)
            if frontend is not None:
                frontend.reply(Prepared(request.number))

    def failed(self, message: GrammarFailed, now: float) -> None:
        """A rank can't compile one."""
        entry = self._state.grammars.failed(message.grammar, now)
        if entry is not None:
            code: ErrorCode = "unavailable" if message.unavailable else "invalid_grammar"
            self.fail(entry, message.reason, code)

    def expire(self, now: float) -> None:
        """Gives up those that take too long to compile."""
        while (entry := self._state.grammars.overdue(now)) is not None:
            seconds = self._state.facts.config.grammar.grammar_compile_timeout
            reason = f"the grammar could not be compiled within {seconds:g} s"
            self.fail(entry, reason, "complex_grammar")

    def fail(self, entry: GrammarEntry, error: str, code: ErrorCode) -> None:
        """Ends the requests of a grammar that failed to compile, whatever else they wait for."""
        for request in list(entry.holders):
            self._finisher.end_all(
                request, SequenceState.FINISHED_FAILED, error=error, error_code=code
            )
