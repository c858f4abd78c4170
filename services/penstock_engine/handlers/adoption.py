"""Requests that lose their front end, and go on with another that claims their answer; and answers
that more than one request gets."""

from __future__ import annotations

from array import array

import msgspec

from penstock.protocol.common import TokenSampling
from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_frontend import Accepted, Prepared, SequenceOutput
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.request.reader import Reader
from penstock_engine.request.request import Request, worker_sampling
from penstock_engine.request.states import FINISH_REASONS, SequenceState
from penstock_engine.request.timeline import TimelineBuilder
from penstock_engine.sessions.frontends import NOBODY, FrontendSession
from penstock_engine.sessions.kept_answers import can_be_shared
from penstock_engine.sessions.shared_answers import MOST_READERS, SHARED

ELSEWHERE = "another connection goes on with this stream"


class Adoption:
    """Keeps resumable requests going for a while, and gives them to the readers that resume
    them."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._state = state
        self._finisher = finisher

    def orphan(self, request: Request, now: float) -> bool:
        """Whether a request goes on whose front end or client is gone."""
        former, book = self._state.frontends.get(request.session), self._state.kept_answers
        if former is None or self._state.draining:
            return False
        if not book.takes_in(request, now):
            return False
        if request.session != SHARED and request.kept is not None:
            book.left(request, request.kept.claims)
        former.release(request)
        self._state.frontends.orphanage.take_in(request)
        return True

    def expire(self, now: float) -> None:
        """Ends requests that no reader has adopted in time, and readers past their deadline."""
        for request in self._state.kept_answers.over(now):
            self._finisher.close(request)
        for reader in self._state.shared_answers.deadlines.over(now):
            self.leave(reader, SequenceState.FINISHED_TIMED_OUT, now)
        self._state.kept_answers.settle(now)

    def leave(
        self,
        reader: Reader,
        end: SequenceState,
        now: float,
        *,
        handed_over: bool = False,
        withdrawn: bool = False,
    ) -> None:
        """Removes a reader and notifies it. A request that nobody else reads waits for its reader
        to come back, as any request does, or ends. withdrawn: this reader won't come back."""
        shared, book = self._state.shared_answers, self._state.kept_answers
        request = shared.requests[reader.answer]
        timed_out = end is SequenceState.FINISHED_TIMED_OUT
        if reader.claim and not (withdrawn or timed_out or handed_over):
            book.left(request, [reader.claim])
        if len(request.readers) > 1:
            shared.tell_end(request, reader, FINISH_REASONS[end])
            self._end_unread(request)
            return
        awaited = request.kept is not None and bool(request.kept.left)
        if timed_out or handed_over or not awaited or not self.orphan(request, now):
            request.handed_over = handed_over
            self._finisher.end_all(request, end)

    def _end_unread(self, request: Request) -> None:
        """Ends sequences without readers, while others of the request are read."""
        for sequence in list(request.sequences.values()):
            read = any(sequence.index in reader.open for reader in request.readers)
            if not read and not sequence.finished:
                self._state.kept_answers.cut(request)
                self._finisher.end(sequence, SequenceState.FINISHED_ABORTED)

    def finish(self, reader: Reader, index: int) -> None:
        """A reader has found the end of a sequence, which goes on while others read it."""
        shared = self._state.shared_answers
        request = shared.requests[reader.answer]
        if index not in reader.open:
            return
        if any(index in other.open for other in request.readers if other is not reader):
            shared.tell_end(request, reader, "stop", index=index)
        else:
            self.stop(request, index)

    def stop(self, request: Request, index: int) -> None:
        """Ends a sequence of which the request's only reader has found the end."""
        self._state.kept_answers.cut(request)
        self._finisher.end(request.sequences[index], SequenceState.FINISHED_STOPPED)

    def gives_way(self, tenant: str) -> bool:
        """Ends the tenant's oldest request without a reader, as it may have no more open. Returns
        whether there was one."""
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
        if found is None or found.kept is None:
            return False
        # What has had several readers is only joined: it is unknown which of them comes again.
        alone = not found.kept.joined and (claim.goes_on or found.session == NOBODY)
        if not (found.ended or alone) or not self._may_have(submit, found, ahead=False):
            return False
        book.adopted += 1
        self._hand_over(found, frontend, submit, now)
        return True

    def shareable(self, submit: Submit) -> Request | None:
        """What is being computed, and would answer the request along with what it answers now: of
        an equal claim, or of another request where that is wanted."""
        state = self._state
        if (submit.claim is None and not submit.shared) or not can_be_shared(submit):
            return None
        if not submit.resumed and (state.draining or state.weights.asked is not None):
            return None
        found = None if submit.claim is None else state.kept_answers.find(submit.claim.digest)
        if found is None and submit.shared:
            sampling = self._sampling_of(submit)
            found = state.kept_answers.find_shared(submit, sampling)
        if found is None or found.ended or found.kept is None:
            return None
        # What may have killed an engine core is not passed off as what has not.
        blamed = max(each.deaths for each in found.sequences.values())
        full = found.kept.joined >= MOST_READERS - 1 or not state.shared_answers.has_room(found)
        if submit.deaths > blamed or full:
            return None
        return found if self._may_have(submit, found, ahead=True) else None

    def join(self, found: Request, frontend: FrontendSession, submit: Submit, now: float) -> None:
        """Answers a request along with an earlier one that is shareable."""
        state, kept, claim = self._state, found.kept, submit.claim
        goes_on = claim is not None and claim.goes_on
        if found.session != SHARED:
            state.kept_answers.taken_over(found)
            state.shared_answers.take_in(found, kept.claims[0] if kept and kept.claims else b"")
        elif claim is not None and goes_on:
            for former in [each for each in found.readers if each.claim == claim.digest]:
                state.shared_answers.tell_end(found, former, "error", ELSEWHERE)
        state.kept_answers.joined(found, submit)
        state.kept_answers.adopted += goes_on
        state.kept_answers.shared += not goes_on
        reader = state.shared_answers.join(found, frontend, submit, now)
        self._greet(found, frontend, submit, shared=not goes_on)
        outputs = self._missed_outputs(found, submit)
        if outputs:
            cached = reader.take_cached_tokens(found.cached_tokens)
            outputs[0] = msgspec.structs.replace(outputs[0], cached_tokens=cached)
        frontend.catch_up(outputs)
        self._end_unread(found)

    def _sampling_of(self, submit: Submit) -> TokenSampling:
        """Returns the request's sampling in the worker's form."""
        own = self._state.facts.model.generation
        return worker_sampling(
            submit.sampling, submit.stopping, own.eos_token_ids, own.suppress_tokens
        )

    def _may_have(self, submit: Submit, found: Request, *, ahead: bool) -> bool:
        """Whether the new reader may have the answer. Claims are digests made by front ends, so the
        request itself is compared, too. ahead: see KeptAnswer.agrees."""
        kept = found.kept
        sampling = self._sampling_of(submit)
        if ahead and sampling.temperature == 0.0:
            sampling = msgspec.structs.replace(sampling, seed=found.sampling.seed)
        wanted = {each.index for each in submit.sequences}
        alive = {index for index, each in found.sequences.items() if not each.finished}
        return (
            kept is not None
            and submit.tenant == found.tenant
            and submit.adapter == found.adapter
            and submit.stopping == found.stopping
            and sampling == kept.sampling
            and array("i", submit.prompt_token_ids) == found.prompt_token_ids
            and kept.agrees(submit.sequences, ahead=ahead)
            # A sequence that it takes to have ended, and that goes on, can't be reported to it;
            # unless others read that.
            and (alive <= wanted or (ahead and found.session != NOBODY))
            # Of what is all there it is no reader.
            and (not ahead or not alive.isdisjoint(wanted))
        )

    def _hand_over(
        self, request: Request, frontend: FrontendSession, submit: Submit, now: float
    ) -> None:
        if not request.ended:
            self._take_away(request)
            self._state.kept_answers.came_again(request, submit)
            self._renew(request, submit, now)
            frontend.take_over(request, submit.request)
        self._greet(request, frontend, submit, shared=False)
        frontend.catch_up(self._outputs(request, submit))

    def _greet(
        self, request: Request, frontend: FrontendSession, submit: Submit, *, shared: bool
    ) -> None:
        frontend.reply(Accepted(submit.request, shared))
        begun = any(sequence.emitted for sequence in request.sequences.values())
        prepared = request.ended or begun or self._state.grammars.is_ready(request)
        if submit.grammar is not None and prepared:
            frontend.reply(Prepared(submit.request))

    def _missed_outputs(self, request: Request, submit: Submit) -> list[SequenceOutput]:
        """All that there is of the answer, but for what the new reader has."""
        kept = request.kept
        if kept is None:
            return []
        return kept.outputs(submit.request, submit.sequences, submit.prompt_delivered)

    def _outputs(self, request: Request, submit: Submit) -> list[SequenceOutput]:
        """What the new reader gets at once; the number of cached tokens with the first."""
        found = self._missed_outputs(request, submit)
        request.cached_reported = bool(found) and request.cached_tokens is not None
        if found:
            found[0] = msgspec.structs.replace(found[0], cached_tokens=request.cached_tokens)
        return found

    def _take_away(self, request: Request) -> None:
        """Takes the request from the front end that had it. If that is still there, it is notified
        that it gets no more of it."""
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
