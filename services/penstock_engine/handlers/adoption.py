"""Requests that lose their front end, and go on with another that claims their answer."""

from __future__ import annotations

from array import array

import msgspec

from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_frontend import Accepted, Prepared, SequenceOutput
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.request.request import Request, worker_sampling
from penstock_engine.request.timeline import TimelineBuilder
from penstock_engine.sessions.frontends import NOBODY, FrontendSession

ELSEWHERE = "another connection goes on with this stream"


class Adoption:
    """Keeps what is resumable going for a while, and gives it to who goes on with it."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._state = state
        self._finisher = finisher

    def orphan(self, request: Request, now: float) -> bool:
        """Whether a request goes on whose front end or client is gone."""
        former = self._state.frontends.get(request.session)
        if former is None or self._state.draining:
            return False
        if not self._state.kept_answers.takes_in(request, now):
            return False
        former.release(request)
        self._state.frontends.orphanage.take_in(request)
        return True

    def expire(self, now: float) -> None:
        """Ends what nobody has gone on with in time."""
        for request in self._state.kept_answers.over(now):
            self._finisher.close(request)
        self._state.kept_answers.settle(now)

    def gives_way(self, tenant: str) -> bool:
        """Whether something of the tenant's has ended that nobody reads, as it may have no more
        open: the oldest does."""
        oldest = self._state.kept_answers.oldest_of(tenant)
        if oldest is not None:
            self._finisher.close(oldest)
        return oldest is not None

    def adopt(self, frontend: FrontendSession, submit: Submit, now: float) -> bool:
        """Whether a request is answered by what an earlier one with an equal claim has had
        computed. The latter is the front end's from here on."""
        claim, book = submit.claim, self._state.kept_answers
        if claim is None:
            return False
        found = book.find(claim.digest)
        if found is not None and self._may_have(submit, found):
            book.adopted += 1
            self._hand_over(found, frontend, submit, now)
            return True
        book.recomputed += claim.goes_on
        return False

    def _may_have(self, submit: Submit, found: Request) -> bool:
        """Claims are digests that front ends make. The request itself has the last word."""
        claim, kept = submit.claim, found.kept
        read = not found.ended and found.session != NOBODY
        eos = self._state.facts.model.generation.eos_token_ids
        wanted = {each.index for each in submit.sequences}
        return (
            claim is not None
            and kept is not None
            and (claim.goes_on or not read)
            and submit.tenant == found.tenant
            and submit.adapter == found.adapter
            and submit.stopping == found.stopping
            and worker_sampling(submit.sampling, submit.stopping, eos) == found.sampling
            and array("i", submit.prompt_token_ids) == found.prompt_token_ids
            and kept.agrees(submit.sequences)
            # One that it takes to have ended, and that goes on, is nothing it could be told of.
            and all(s.finished or s.index in wanted for s in found.sequences.values())
        )

    def _hand_over(
        self, request: Request, frontend: FrontendSession, submit: Submit, now: float
    ) -> None:
        if not request.ended:
            self._take_away(request)
            self._renew(request, submit, now)
            frontend.take_over(request, submit.request)
        frontend.reply(Accepted(submit.request))
        begun = any(sequence.emitted for sequence in request.sequences.values())
        prepared = request.ended or begun or self._state.grammars.is_ready(request)
        if submit.grammar is not None and prepared:
            frontend.reply(Prepared(submit.request))
        frontend.outputs += self._outputs(request, submit)

    def _outputs(self, request: Request, submit: Submit) -> list[SequenceOutput]:
        """What the new reader gets at once; the number of cached tokens with the first."""
        kept = request.kept
        if kept is None:
            return []
        found = kept.outputs(submit.request, submit.sequences, submit.prompt_delivered)
        request.cached_reported = bool(found) and request.cached_tokens is not None
        if found:
            found[0] = msgspec.structs.replace(found[0], cached_tokens=request.cached_tokens)
        return found

    def _take_away(self, request: Request) -> None:
        """From whoever had it. One that is still there is told that it gets no more."""
        self._state.kept_answers.taken_over(request)
        former = self._state.frontends.get(request.session)
        if former is None:
            return
        number = request.number
        former.release(request)
        if request.session != NOBODY:
            former.outputs += [
                SequenceOutput(
                    number,
                    sequence.index,
                    finish="error",
                    error=ELSEWHERE,
                    error_code="unavailable",
                )
                for sequence in request.sequences.values()
                if not sequence.finished
            ]

    def _renew(self, request: Request, submit: Submit, now: float) -> None:
        """What of a request is its reader's, and may be another one's than before."""
        deadlines, left = self._state.frontends.deadlines, submit.time_left_ms
        deadlines.forget(request)
        request.deadline = None if left is None else now + left / 1000
        deadlines.watch(request)
        request.name, request.gathered = submit.name, submit.gathered
        for sequence in request.sequences.values():
            if submit.timeline and sequence.timeline is None and not sequence.finished:
                sequence.timeline = TimelineBuilder(self._state.clock)
