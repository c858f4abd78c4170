"""A beam search in an engine core: one request, which stays open from step to step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.client.observer import UNOBSERVED, RequestEvents
from penstock.client.placement import NOWHERE, Holder, OpenRequest, Placement
from penstock.client.routing import Blame
from penstock.client.timing import RequestTiming
from penstock.errors import DeadlineExceeded, PenstockError
from penstock.protocol.common import FinishReason, Stopping, TokenLogprobs, TokenSampling
from penstock.protocol.from_frontend import Advance, OpenSequence, Submit
from penstock.protocol.to_frontend import Pooled, SequenceOutput
from penstock.request.terms import Terms


@dataclass(slots=True)
class Outcome:
    """How a beam's step ended. entry: the most likely next tokens; None: none came."""

    entry: TokenLogprobs | None = None
    finish: FinishReason | None = None
    error: str | None = None


NextStep = list[list[int]] | FinishReason
"""What each beam of the next step has emitted; or why the search is over."""

Follow = Callable[[list[Outcome]], NextStep]
"""Takes the outcomes of a step's beams, in their order, and returns the next step. If it raises a
PenstockError, the search fails with that."""


class BeamRequest:
    """Holds the search's whole state, so that it can be submitted again when the engine core it ran
    on is gone.  Each step's beams follow from the one before in the turn of the event loop that
    brought its last outcome: there is no moment at which it has nothing to run.

    `done` is the reason why it ended: what `follow` said, or "timeout" where the deadline passed
    while beams waited; then they are as the last step left them.
    timing: records its moments, and the engine's timing of its first step.
    """

    media: None = None

    def __init__(
        self,
        *,
        name: str,
        prompt_token_ids: list[int],
        beams: int,
        sampling: TokenSampling,
        terms: Terms,
        placement: Placement,
        follow: Follow,
        timing: RequestTiming | None = None,
        observed: RequestEvents = UNOBSERVED,
    ) -> None:
        self.key = 0
        self.holder: Holder = NOWHERE
        self.placement = placement
        self.blame = Blame()
        self.name = name
        self.terms = terms
        self.timing = timing
        self.done: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()
        self._observed = observed
        self._prompt_token_ids = prompt_token_ids
        self._beams = beams
        self._sampling = sampling
        self._follow = follow
        self._accepted = False
        self._emitted: dict[int, list[int]] = {}
        """Emitted tokens of the beams whose step has not ended, by sequence."""
        self._outcomes: list[Outcome] = []
        self._begin([[]])

    @property
    def finished(self) -> bool:
        return self.done.done()

    @property
    def open_sequences(self) -> int:
        return len(self._emitted)

    @property
    def carried_tokens(self) -> int:
        """Tokens that its submission holds: the prompt's and the emitted ones."""
        return len(self._prompt_token_ids) + sum(len(emitted) for emitted in self._emitted.values())

    @property
    def begun(self) -> bool:
        return any(self._emitted.values())

    @property
    def successor(self) -> OpenRequest:
        """What is submitted again if the request's engine core is lost: the request itself."""
        return self

    def submission(self) -> Submit:
        """The message that runs what is left of the present step."""
        if self.timing is not None:
            self.timing.submit()
        longest = max(len(emitted) for emitted in self._emitted.values())
        return Submit(
            request=self.key,
            name=self.name,
            prompt_token_ids=self._prompt_token_ids,
            sequences=self._sequences(),
            sampling=self._sampling,
            stopping=Stopping(max_tokens=longest + 1, ignore_eos=True),
            deaths=self.blame.deaths,
            resumed=self._accepted,
            cache_salt=self.terms.cache_salt,
            tenant=self.terms.tenant,
            priority=self.terms.priority,
            time_left_ms=self.terms.time_left_ms(time.monotonic()),
            timeline=self.timing is not None and not self.timing.complete,
            grant=self.terms.grant,
            beams=self._beams,
            adapter=self.terms.adapter,
            background=self.terms.background,
            session=self.terms.session,
        )

    def take_accepted(self) -> None:
        """The engine has promised to run it."""
        self._accepted = True

    def take_entered(self) -> None:
        """A sequence of it is in a step."""
        self._observed.entered()

    def take_prepared(self) -> None:
        """Does nothing: a beam search has no grammar."""

    def take_pooled(self, message: Pooled) -> None:
        """Does nothing: only a pooling request gets vectors."""

    def take(self, output: SequenceOutput) -> None:
        """What the engine says of a beam. Called by the client, in order."""
        if self.finished or output.sequence not in self._emitted:
            return
        if output.cached_tokens is not None:
            self._observed.found_cached(output.cached_tokens)
        outcome = self._outcomes[output.sequence]
        if output.tokens:
            self.blame.gained()
            self._observed.gain(len(output.tokens))
        if output.logprobs:
            outcome.entry = output.logprobs[0]
        if output.finish is None:
            return
        if self.timing is not None and not self.timing.complete:
            self.timing.hear(0, output.timeline)
        outcome.finish, outcome.error = output.finish, output.error
        del self._emitted[output.sequence]
        if not self._emitted:
            self._advance()

    def abort(self) -> None:
        """Ends the search here and in the engine. Idempotent."""
        if not self.finished:
            self.holder.abort(self)
            self.done.cancel()
            self._observed.end_search("abort")
        self._leave()

    def expire(self) -> None:
        """Ends the search at its deadline, while no engine core has it."""
        if self._accepted:
            self._end("timeout")
        else:
            self.fail(DeadlineExceeded("the deadline passed before the search had begun"))

    def fail(self, error: PenstockError) -> None:
        """Ends the search with an error."""
        if not self.finished:
            self.done.set_exception(error)
            self.done.exception()  # It may be awaited or not; marks the exception as retrieved.
            self._observed.end_search("error")
        self._leave()

    def _leave(self) -> None:
        self.holder.forget(self)

    def _begin(self, beams: list[list[int]]) -> None:
        self._emitted = dict(enumerate(beams))
        self._outcomes = [Outcome() for _ in beams]

    def _sequences(self) -> list[OpenSequence]:
        return [OpenSequence(index, emitted) for index, emitted in self._emitted.items()]

    def _advance(self) -> None:
        """Begins the next step of the search, or ends it, once all beams of a step have ended."""
        try:
            following = self._follow(self._outcomes)
        except PenstockError as error:
            self.holder.abort(self)
            self.fail(error)
            return
        if isinstance(following, str):
            self._end(following)
            return
        self._begin(following)
        if self.terms.time_left_ms(time.monotonic()) == 0:
            self._end("timeout")
            return
        # Where the session has ended, it is submitted again instead.
        self.holder.send(Advance(self.key, self._sequences()))

    def _end(self, reason: FinishReason) -> None:
        """Aborts the request: the engine core can't know by itself that nothing follows."""
        if not self.finished:
            self.holder.abort(self)
            self.done.set_result(reason)
            self._observed.end_search(reason)
        self._leave()
