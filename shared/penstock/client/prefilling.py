"""Long prompts that an engine core of role `prefill` computes first.

The engine core that then generates fetches the KV blocks from that one's worker, or computes what
it doesn't get: whatever becomes of this part, the request goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from penstock.client.generation import Generation
from penstock.client.media import PreparedMedia
from penstock.client.placement import NOWHERE, Holder, OpenRequest, Placement
from penstock.client.routing import Blame, Why
from penstock.client.session import EngineSession
from penstock.errors import PenstockError
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import FromFrontend, OpenSequence, Submit
from penstock.protocol.to_frontend import Pooled, SequenceOutput
from penstock.request.terms import Terms

_SAMPLING = TokenSampling(0, temperature=0.0)
_STOPPING = Stopping(max_tokens=1, ignore_eos=True)
"""Limits of a prefill, whose one token is thrown away."""


class PrefillAhead:
    """The prefill of a Generation's prompt at another engine core, as an OpenRequest of its own.
    The Generation waits, and is passed to `go_on` once when the prefill ends, however it ends."""

    def __init__(self, generation: Generation, go_on: Callable[[OpenRequest], None]) -> None:
        self.key = 0
        self.holder: Holder = NOWHERE
        self.placement = Placement(generation.placement.ask)
        self.placement.refused = True  # If one engine core refuses it, no other is asked.
        self.media: PreparedMedia | None = None
        self._generation = generation
        self._go_on = go_on
        self._over = False
        self._expected: tuple[EngineSession, int] | None = None
        generation.holder = _Behind(self)

    def expect_at(self, session: EngineSession, why: Why) -> None:
        """Has the engine core that is to go on with the request fetch KV blocks meanwhile."""
        number = session.expect(self._generation.prompt_token_ids, self.terms)
        self._expected = session, number
        self._generation.placement.expected = session.endpoint, why

    @property
    def held(self) -> str | None:
        """The only fingerprint that the request itself may be computed with; None: any."""
        return self._generation.placement.held

    @property
    def blame(self) -> Blame:
        """What kills an engine core by its prompt is the request."""
        return self._generation.blame

    @property
    def name(self) -> str:
        return self._generation.name

    @property
    def terms(self) -> Terms:
        return self._generation.terms

    @property
    def finished(self) -> bool:
        return self._over or self._generation.finished

    @property
    def open_sequences(self) -> int:
        return 1

    @property
    def carried_tokens(self) -> int:
        return len(self._generation.prompt_token_ids)

    @property
    def begun(self) -> bool:
        return False

    @property
    def successor(self) -> OpenRequest:
        """The request itself, which goes on without a prefill elsewhere if that engine core is
        lost."""
        self._end_here()
        return self._generation

    def submission(self) -> Submit:
        terms = self.terms
        return Submit(
            request=self.key,
            name=self.name,
            prompt_token_ids=self._generation.prompt_token_ids,
            sequences=[OpenSequence(0)],
            sampling=_SAMPLING,
            stopping=_STOPPING,
            deaths=self.blame.deaths,
            cache_salt=terms.cache_salt,
            tenant=terms.tenant,
            priority=terms.priority,
            time_left_ms=terms.time_left_ms(time.monotonic()),
            grant=terms.grant,
            adapter=terms.adapter,
            background=terms.background,
        )

    def take(self, output: SequenceOutput) -> None:
        if output.finish is not None:
            self._end()

    def take_accepted(self) -> None:
        """The request itself has been promised nothing."""

    def take_entered(self) -> None:
        """Does nothing: the request itself has entered no step."""

    def take_prepared(self) -> None:
        """Does nothing: a prefill has no grammar."""

    def take_pooled(self, message: Pooled) -> None:
        """Does nothing: only a pooling request gets vectors."""

    def abort(self) -> None:
        self._generation.abort()

    def expire(self) -> None:
        self._generation.expire()

    def fail(self, error: PenstockError) -> None:
        """Ends the prefill and has the request itself go on, which will fail by itself if there is
        anything wrong with it."""
        self._end()

    def leave(self) -> None:
        """The request is over."""
        self._end_here()
        self.holder.forget(self)

    def _end_here(self) -> None:
        self._over = True
        expected, self._expected = self._expected, None
        if expected is not None:
            expected[0].forget_expected(expected[1])

    def _end(self) -> None:
        if self._over:
            return
        self.leave()
        if not self._generation.finished:
            self._go_on(self._generation)


class _Behind:
    """The Generation's holder until its prefill has ended."""

    def __init__(self, ahead: PrefillAhead) -> None:
        self._ahead = ahead

    def send(self, message: FromFrontend) -> bool:
        """Sends nothing and returns False: no engine core has the request yet."""
        return False

    def abort(self, request: OpenRequest) -> None:
        self._ahead.holder.abort(self._ahead)

    def forget(self, request: OpenRequest) -> None:
        """Ends the prefill: the request is over, or placed elsewhere."""
        if not self._ahead.finished or request.finished:
            self._ahead.leave()


def prefill_engines(
    sessions: Iterable[EngineSession], generation: Generation
) -> list[EngineSession]:
    """Engine cores that may compute the request's prompt ahead. There are none for a short
    prompt, for one with media or with log-probabilities, and if no other engine core could go
    on."""
    whole = generation.media is None and generation.prompt_logprobs is None
    if not whole or generation.begun:
        return []
    length, held = len(generation.prompt_token_ids), generation.placement.held
    able, others = [], False
    for session in sessions:
        if not session.ready or session.retired:
            continue
        least = session.prefills_from
        if not least:
            others = True
        elif length >= least and held in (None, session.fingerprint):
            able.append(session)
    return able if others else []
