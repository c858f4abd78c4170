"""The generations of one HTTP request: one for each prompt, each with n sequences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.client.rejections import unavailable
from penstock.client.turn_budget import TurnBudget, forget
from penstock.errors import EngineUnavailable, InvalidRequest, RequestFailed
from penstock.protocol.common import TokenLogprobs
from penstock.request.structured_outputs import PARAM
from penstock_gateway.http.errors import timed_out

if TYPE_CHECKING:
    from penstock.client import EngineClient, Generation, SequenceDelta
    from penstock.client.delivery import Sink
    from penstock.client.emitted import KnownTokens
    from penstock.client.placement import Computing
    from penstock.client.ready_params import ReadyParams
    from penstock.client.session_turns import TextSink
    from penstock.client.timing import RequestTiming
    from penstock.media.item_names import PromptMedia
    from penstock.protocol.common import Claim, ErrorCode, FinishReason, TokenLogprobs
    from penstock.request.sampling_params import SamplingParams
    from penstock.request.terms import Terms
    from penstock_gateway.generate.reply import ReplyFormat

Arrivals = list[tuple[int, "SequenceDelta"]]
"""Deltas of one wake-up, each with the index of its choice: prompt * n + sequence."""

_PARAMS: dict[ErrorCode, str] = {"invalid_media": "messages", "invalid_adapter": "model"}
"""The field that an error is about. Others are about what the output has to look like."""


class Withdrawal:
    """Whether a resumable answer isn't wanted any more. asked: then its computation ends with the
    request, and no engine core continues it for a while."""

    SCOPE = "penstock.withdrawal"
    """The key of a request's ASGI scope under which a caller in this process passes one."""

    asked = False


class GenerationBatch:
    """Use it as an async context manager: whatever happens inside, nothing goes on after it."""

    def __init__(
        self,
        generations: list[Generation],
        n: int,
        client: EngineClient,
        *,
        background: bool,
        withdrawal: Withdrawal | None = None,
    ) -> None:
        """background: nobody waits for the answer, and what fails is made anew."""
        self._withdrawal = withdrawal
        self._generations = generations
        self._n = n
        self._client = client
        self._background = background

    @classmethod
    async def submit(
        cls,
        client: EngineClient,
        prompt_token_ids: list[list[int]],
        params: list[SamplingParams],
        *,
        name: str,
        terms: Terms,
        timed: bool = False,
        media: PromptMedia | None = None,
        prediction: Sequence[int] = (),
        read_at_end: bool = False,
        known: Sequence[KnownTokens] = (),
        claims: Sequence[Claim] = (),
        withdrawal: Withdrawal | None = None,
        ready: Sequence[ReadyParams] = (),
    ) -> GenerationBatch:
        """Returns once the engine has accepted all of them; when it refuses one, none runs.

        media: of the prompt, if there is one only. prediction: of each. read_at_end: the reply
        shows nothing before its end. known: what the client has of each choice; empty: nothing.
        claims: of each prompt's answer; empty: they have none.  withdrawal: of these.  ready: what
        was made of each prompt's params, which then need none of what it was made from; empty: it
        is made here.  Several prompts need a fingerprint in their terms: all are computed alike.
        """
        n = params[0].n
        make = partial(cls, n=n, client=client, withdrawal=withdrawal, background=terms.background)
        if len(prompt_token_ids) == 1:
            generation = await client.submit(
                prompt_token_ids[0],
                params[0],
                name=name,
                terms=_claiming(terms, claims, 0),
                timed=timed,
                media=media,
                prediction=prediction,
                read_at_end=read_at_end,
                known=known,
                ready=ready[0] if ready else None,
            )
            return make([generation])
        ready = ready or await client.ready_of_each(params, terms)
        submit = partial(client.submit, timed=timed, prediction=prediction, read_at_end=read_at_end)
        budget = TurnBudget()

        async def one(i: int) -> Generation:
            await budget.take()
            return await submit(
                prompt_token_ids[i],
                params[i],
                name=f"{name}-{i}",
                terms=_claiming(terms, claims, i),
                known=known[i * n : (i + 1) * n],
                ready=ready[i],
            )

        attempts = [asyncio.create_task(one(i)) for i in range(len(prompt_token_ids))]
        try:
            return make(list(await asyncio.gather(*attempts)))
        except BaseException:
            for attempt in attempts:
                attempt.cancel()
            for outcome in await asyncio.gather(*attempts, return_exceptions=True):
                if not isinstance(outcome, BaseException):
                    outcome.abort()
            raise

    @property
    def choices(self) -> int:
        """How many choices the reply has."""
        return len(self._generations) * self._n

    @property
    def shared(self) -> int:
        """Prompts whose answer is computed along with an earlier request's."""
        return sum(generation.placement.shared for generation in self._generations)

    def prompt_logprobs(self, prompt: int) -> list[TokenLogprobs | None] | None:
        """Log-probabilities of a prompt's tokens, from its first delta on; None unless asked
        for."""
        return self._generations[prompt].prompt_logprobs

    def replayed(self, choice: int) -> SequenceDelta | None:
        """What the tokens that the client knew have gained since the last call; None: nothing."""
        prompt, sequence = divmod(choice, self._n)
        return self._generations[prompt].replayed(sequence)

    def computing(self) -> Computing | None:
        """Returns what all of it is computed with; None: not known yet."""
        first = next(iter(self._generations), None)
        return None if first is None else first.placement.computing

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of `computing`."""
        computing = self.computing()
        return None if computing is None else computing.fingerprint

    @property
    def cached_tokens(self) -> int:
        """Tokens of all prompts that were found in the KV cache, as far as it is known."""
        return sum(generation.cached_tokens or 0 for generation in self._generations)

    @property
    def predicted(self) -> tuple[int, int] | None:
        """How many drafted tokens became a part of the outputs so far, and how many did not; None
        where nothing was predicted."""
        if not any(generation.prediction for generation in self._generations):
            return None
        kept = sum(generation.kept for generation in self._generations)
        return kept, sum(generation.drafted for generation in self._generations) - kept

    @property
    def timings(self) -> list[RequestTiming]:
        """Timing of each prompt, in order; empty unless they are timed."""
        return [g.timing for g in self._generations if g.timing is not None]

    @property
    def n(self) -> int:
        """Sequences of each prompt."""
        return self._n

    def failure(self, delta: SequenceDelta, reply: ReplyFormat) -> Exception | None:
        """Returns the error that the delta's sequence ended with; None if it didn't."""
        if delta.finish_reason == "abort" and reply.shows_aborts and not self._background:
            # A client that closes aborts everything, which was not requested.
            return _aborted() if self._client.closed else None
        return failure_of(delta.finish_reason, delta.error, delta.error_code)

    async def __aenter__(self) -> GenerationBatch:
        return self

    async def __aexit__(self, *exc: object) -> None:
        withdrawn = self._withdrawal is not None and self._withdrawal.asked
        for generation in self._generations:
            generation.abort(withdrawn=withdrawn)
        if len(self._generations) > 1:
            await forget(self._generations)

    def feed(self, sink: Sink) -> None:
        """Offers deltas to `sink` first, see Generation.feed; several generations have none, as
        their order is kept by a queue."""
        if len(self._generations) == 1:
            self._generations[0].feed(sink)

    def feed_text(self, sink: TextSink) -> None:
        """Has `sink` take the only generation's text, see Generation.feed_text."""
        self._generations[0].feed_text(sink)

    async def arrivals(self) -> AsyncIterator[Arrivals]:
        """Yields what came since the last step, until every sequence has finished."""
        if len(self._generations) == 1:
            async for deltas in self._generations[0]:
                yield [(delta.index, delta) for delta in deltas]
            return
        queue: asyncio.Queue[Arrivals | BaseException | None] = asyncio.Queue()
        pumps = [
            asyncio.create_task(_pump(generation, i * self._n, queue))
            for i, generation in enumerate(self._generations)
        ]
        try:
            running = len(pumps)
            while running:
                gathered: Arrivals = []
                item = await queue.get()
                while True:
                    if isinstance(item, BaseException):
                        raise item
                    running -= item is None
                    gathered += item or ()
                    if queue.empty():
                        break
                    item = queue.get_nowait()
                if gathered:
                    yield gathered
        finally:
            for pump in pumps:
                pump.cancel()


def _claiming(terms: Terms, claims: Sequence[Claim], prompt: int) -> Terms:
    return msgspec.structs.replace(terms, claim=claims[prompt]) if claims else terms


async def _pump(
    generation: Generation, first: int, queue: asyncio.Queue[Arrivals | BaseException | None]
) -> None:
    try:
        async for deltas in generation:
            queue.put_nowait([(first + delta.index, delta) for delta in deltas])
    except Exception as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)


def failure_of(
    reason: FinishReason | None, error: str | None, code: ErrorCode | None = None
) -> Exception | None:
    """The error that a sequence ended in, if it did not end by itself."""
    match reason:
        case "error":
            error = error or "the request failed in the engine"
            if code == "unavailable":
                return unavailable(error)
            if code is not None:
                param = _PARAMS.get(code, PARAM)
                return InvalidRequest(error, param=param, code=code)
            return RequestFailed(error)
        case "timeout":
            return timed_out("the request's deadline passed before its answer was complete")
        case "abort":
            return _aborted()
    return None


def _aborted() -> EngineUnavailable:
    return EngineUnavailable("the request was aborted by the server")
