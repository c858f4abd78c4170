"""One request on its way through the engine, as its front end sees it.

A Generation holds the request's whole state (prompt, parameters, seed, emitted ids), so that it
can be submitted again when the engine core it ran on is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from penstock.client.delivery import Delivery, PlainText, Put, Sink
from penstock.client.deltas import Pending, SequenceDelta
from penstock.client.emitted import EmittedSequence, emitted_sequences
from penstock.client.generation_request import GenerationRequest
from penstock.client.placement import NOWHERE, Holder, OpenRequest, Placement
from penstock.client.rejections import failed_early
from penstock.client.routing import Blame
from penstock.client.session_turns import TextSink
from penstock.client.timing import RequestTiming
from penstock.errors import DeadlineExceeded, PenstockError
from penstock.protocol.common import FinishReason, TokenLogprobs
from penstock.protocol.from_frontend import Finish, OpenSequence, Submit
from penstock.protocol.to_frontend import Pooled, SequenceOutput
from penstock.request.sampling_params import RequestOutputKind


class Generation:
    """Iterate it for lists of SequenceDelta, until every sequence has finished.

    Deltas that the consumer has not taken yet are merged, so what waits is bounded by max_tokens.

    key: the request's number in its holder, the session that it runs in or the waiting room where
    it waits for one; the client renews both on a resubmit.  cached_tokens: of the prompt, found in
    the KV cache when the request started; None before.  prompt_logprobs: an entry for each token of
    the prompt, None for the first; complete before the first delta comes, unless the request ends
    early.  None if they weren't asked for.  timing: when what happened; None if it wasn't asked
    for.  The client keeps a timed generation until the engine core has sent the last output of
    every sequence, also of those that ended here at a stop string.
    """

    def __init__(
        self, request: GenerationRequest, delivery: Delivery, placement: Placement
    ) -> None:
        params = request.params
        self.key = 0
        self.holder: Holder = NOWHERE
        self.placement = placement
        self.name = request.name
        self.prompt_token_ids = request.prompt_token_ids
        self.params = params
        self.terms = request.terms
        self.media = request.media
        self.prediction = request.prediction
        self.drafted = self.kept = 0
        """Tokens that were drafted for all sequences, and those that are a part of the output."""
        self.blame = Blame()
        self.cached_tokens: int | None = None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            None if request.sampling.prompt_logprobs is None else [None]
        )
        self.timing = RequestTiming(params.n) if delivery.timed else None
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.prepared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing stands before the first output any more: once the request is accepted;
        with a grammar, once that is compiled; with media, once the request is in a step.  It holds
        an exception if the request will not run."""
        # Ends in the text are looked for in each token as it comes.
        self._read_at_end = not (params.stop_strings or params.min_indentation) and (
            delivery.read_at_end or params.output_kind is RequestOutputKind.FINAL_ONLY
        )
        self._request = request
        self._turns = delivery.turns
        self._observed = delivery.observed
        self._sink: Sink | None = None
        self._text: PlainText | None = None
        self._plain: PlainText | None = None  # `_text`, while text goes that way.
        self._waited_for = self._due = False
        self._pending = Pending()
        self._wake = asyncio.Event()
        self._failure: PenstockError | None = None
        self._sequences = emitted_sequences(delivery.tokenizer, params, delivery.known)
        running = [each.index for each in request.sequences] or range(params.n)
        self._open = {index: self._sequences[index] for index in running}
        for begun in request.sequences:
            self._open[begun.index].resume(begun.emitted)
        self._sole = self._open[0] if params.n == 1 else None
        """The sequence that is open, where there is only one."""

    @property
    def finished(self) -> bool:
        """Whether no sequence is open any more."""
        return not self._open

    @property
    def open_sequences(self) -> int:
        return len(self._open)

    @property
    def carried_tokens(self) -> int:
        """Tokens that its submission holds: the prompt's and the emitted ones; and what else in it
        may be large, as tokens."""
        carried = len(self.prompt_token_ids) + self._request.ready.tokens
        for sequence in self._open.values():
            carried += len(sequence.emitted)
        return carried

    @property
    def max_tokens(self) -> int:
        """Most tokens that each sequence may gain: what was asked for, or what the context
        leaves."""
        return self._request.stopping.max_tokens

    @property
    def begun(self) -> bool:
        """Whether there is some output, also of a sequence that has ended."""
        if self.prompt_logprobs is not None and len(self.prompt_logprobs) > 1:
            return True
        for sequence in self._sequences:  # noqa: SIM110 - asked several times of each request.
            if sequence.emitted:
                return True
        return False

    @property
    def successor(self) -> OpenRequest:
        """What is submitted again if the request's engine core is lost: the request itself."""
        return self

    def submission(self) -> Submit:
        """The message that runs the open sequences, each from its last emitted token on."""
        self._end_plain()
        if self.timing is not None:
            self.timing.submit()
        asked = self._request
        return Submit(
            request=self.key,
            name=self.name,
            prompt_token_ids=self.prompt_token_ids,
            sequences=[OpenSequence(index, s.emitted) for index, s in self._open.items()],
            sampling=asked.sampling,
            stopping=asked.stopping,
            deaths=self.blame.deaths,
            resumed=self.accepted.done(),
            cache_salt=self.terms.cache_salt,
            tenant=self.terms.tenant,
            priority=self.terms.priority,
            time_left_ms=self.terms.time_left_ms(time.monotonic()),
            grammar=asked.ready.grammar,
            timeline=self.timing is not None,
            grant=self.terms.grant,
            prompt_delivered=len(self.prompt_logprobs or ()),
            media=None if self.media is None else self.media.media,
            prediction=list(self.prediction),
            adapter=self.terms.adapter,
            background=self.terms.background,
            session=self.terms.session,
            gathered=self._read_at_end,
            claim=self.terms.claim,
            claimed=asked.claimed,
            shared=self.terms.shared,
        )

    def take_accepted(self) -> None:
        """Takes Accepted: the engine core has promised to run the request."""
        _settle(self.accepted)
        if self._request.ready.grammar is None and self.media is None:
            _settle(self.prepared)

    def take_entered(self) -> None:
        """Takes the news that one of the request's sequences is in a step."""
        self._end_plain()  # What it gains next clears it of blame.
        self._observed.entered()
        _settle(self.prepared)

    def take_prepared(self) -> None:
        """Takes Prepared: the engine core has compiled the request's grammar."""
        if self.media is None:
            _settle(self.prepared)

    def take_pooled(self, message: Pooled) -> None:
        """Does nothing: only a pooling request gets vectors."""

    def abort(self, *, withdrawn: bool = False) -> None:
        """Ends the request here and in the engine core, unless it has ended already; it is kept
        until the timeline has come that its observer wants. withdrawn: its claim counts no more."""
        if withdrawn:
            self.terms = self.terms.unclaimed()
        self._end_plain()
        wanted = self._observed.leave(self.release)
        # Of one that goes on for another front end, the timeline goes there.
        self._leave(linger=wanted and self.terms.claim is None)

    def release(self) -> None:
        """Ends the request, and waits for no timeline any more."""
        self._leave(linger=False)

    def _leave(self, *, linger: bool) -> None:
        # The sink refers to its stream, and that to us: only the garbage collector would end that.
        self._end_plain()
        self._sink = self._text = None
        timing = self.timing
        keep = linger and timing is not None and timing.begun > 0 and not timing.complete
        if not self.finished:
            self.holder.abort(self)
            self._end("abort", keep=keep)
        elif not keep:
            self.holder.forget(self)

    def expire(self) -> None:
        """Ends the request here at its deadline, while there is no engine core that would."""
        if self.finished:
            return
        if self.accepted.done():
            self._end("timeout")
        else:
            self.fail(DeadlineExceeded("the deadline passed while the engine core was away"))

    def fail(self, error: PenstockError) -> None:
        """Ends the request with an error that the consumer's next step raises."""
        if self.finished:
            return
        self._failure = error
        for promise in (self.accepted, self.prepared):
            if not promise.done():
                promise.set_exception(error)
                promise.exception()  # So asyncio doesn't complain if the promise isn't awaited.
        self._close()

    def take(self, output: SequenceOutput) -> None:
        """Turns what the engine sent into a delta. Called by the client, in order."""
        plain = self._plain
        if plain is not None and output.finish is None:
            untaken = plain.take(output.tokens)
            if output.drafted:
                self._count_drafts(output, len(output.tokens))
            if untaken is not None:
                self._give(untaken)
            return
        if output.finish is not None or output.cached_tokens is not None or output.prompt_logprobs:
            self._take_facts(output)
        sequence = (None if output.sequence else self._sole) or self._open.get(output.sequence)
        if sequence is not None and output.error_code is not None and not self.prepared.done():
            # Nothing was sent to the client yet: it is simply a request that is refused.
            grammar = self._request.ready.grammar is not None
            self.fail(failed_early(output, has_grammar=grammar, has_media=self.media is not None))
            return
        if sequence is not None and (output.tokens or output.finish is not None):
            delta = self._delta(sequence, output)
            if delta.finish_reason is not None:
                self._end_sequence(sequence, output, delta)
            if delta.token_ids or delta.text or delta.finish_reason is not None:
                self._give(delta)
        # Else it ended here at a stop string, before the engine knew.
        if not self._open:
            self._close(keep=self.timing is not None and not self.timing.complete)

    def _take_facts(self, output: SequenceOutput) -> None:
        """Takes what only a sequence's first and last outputs have."""
        if self.cached_tokens is None and output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
            self._observed.found_cached(output.cached_tokens)
        if output.prompt_logprobs and self.prompt_logprobs is not None:
            self.prompt_logprobs += output.prompt_logprobs
            self.blame.gained()
            self._wake.set()
        if self.timing is not None and output.finish is not None:
            self.timing.hear(output.sequence, output.timeline)

    def feed(self, sink: Sink) -> None:
        """Offers deltas to `sink` first while the consumer waits for some: once in each iteration
        of the event loop that brought any, with all of them. The consumer gets those that the sink
        doesn't take. So a stream's tokens can be written without waking the stream's task."""
        self._sink = sink

    def feed_text(self, sink: TextSink) -> None:
        """Has `sink` take what follows deltas that the other sink has taken, where it is text."""
        sequence = self._sole
        if sequence is not None and sequence.plain is not None and self.prompt_logprobs is None:
            self._text = PlainText(sequence, sink, self._observed, self.timing, self._turns)

    def flush(self) -> Put | None:
        """Gives the deltas of this iteration of the event loop to the sink, or wakes the consumer.
        Called by the client when it has read all that had come; so is what is returned."""
        self._due = False
        deltas = self._pending.peek()
        if not deltas:
            return None
        awaits_prompt = self.prompt_logprobs is not None and self._awaits_prompt()
        put = None if self._sink is None or awaits_prompt else self._sink(deltas)
        if put is None:
            self._wake.set()
            return None
        self._pending.clear()
        self._observed.give(deltas)
        if self._text is not None and self._open:
            self._plain = self._text
            self._plain.begin()
        return put

    def replayed(self, sequence: int) -> SequenceDelta | None:
        """What the tokens that the consumer knew have gained since the last call; None: nothing."""
        delta = self._sequences[sequence].replayed()
        if delta is not None:
            self._observed.give([delta])
        return delta

    def __aiter__(self) -> AsyncIterator[list[SequenceDelta]]:
        return self

    async def __anext__(self) -> list[SequenceDelta]:
        while not self._pending or self._awaits_prompt():
            if self._failure is not None:
                self._observed.fail()
                raise self._failure
            if self.finished:
                raise StopAsyncIteration
            self._wake.clear()
            self._waited_for = True
            try:
                await self._wake.wait()
            finally:
                self._waited_for = False
        deltas = self._pending.take()
        self._observed.give(deltas)
        return deltas

    def _awaits_prompt(self) -> bool:
        """Whether some of the prompt's log-probabilities are still to come, with the outputs of the
        first sequence."""
        entries = self.prompt_logprobs
        return entries is not None and 0 in self._open and len(entries) < len(self.prompt_token_ids)

    def _delta(self, sequence: EmittedSequence, output: SequenceOutput) -> SequenceDelta:
        """Returns what the sequence gains, and counts it."""
        if output.tokens:
            self.blame.gained()
        begun = time.perf_counter()
        delta = sequence.take(output)
        if self.timing is not None:
            self.timing.detokenise += time.perf_counter() - begun
        if output.drafted:
            self._count_drafts(output, len(delta.token_ids))
        return delta

    def _count_drafts(self, output: SequenceOutput, used: int) -> None:
        """used: how many of the output's tokens are a part of the answer."""
        self.drafted += output.drafted
        # The last token was sampled. What lies after a stop string is no part of the output.
        self.kept += max(0, used - 1)

    def _end_plain(self) -> None:
        """From here on deltas take what arrives, until they have delivered everything."""
        if self._plain is not None:
            self._plain.end()
            self._plain = None

    def _end_sequence(
        self, sequence: EmittedSequence, output: SequenceOutput, delta: SequenceDelta
    ) -> None:
        """Closes a sequence that has ended here at a stop string, or in the engine core."""
        del self._open[output.sequence]
        self._sole = None
        if self.timing is not None:
            self.timing.end(output.sequence)
        if output.finish is None:
            surplus = len(output.tokens) - len(delta.token_ids)
            length = len(sequence.emitted) - surplus
            self.holder.send(Finish(self.key, output.sequence, length))

    def _end(self, reason: FinishReason, *, keep: bool = False) -> None:
        for index in list(self._open):
            self._give(SequenceDelta(index=index, finish_reason=reason))
        self._close(keep=keep)

    def _give(self, delta: SequenceDelta) -> None:
        self._end_plain()
        self._pending.add(delta)
        if self._sink is None or not self._waited_for:
            self._wake.set()
        elif not self._due:
            self._due = True
            self._turns.due.append(self)

    def _close(self, *, keep: bool = False) -> None:
        self._end_plain()
        self._open.clear()
        self._sole = None
        if self.media is not None:
            self.media.close()
        _settle(self.accepted)
        _settle(self.prepared)
        self._turns.over(self._wake, at_once=not self._due)
        if not keep:
            self.holder.forget(self)


def _settle(promise: asyncio.Future[None]) -> None:
    if not promise.done():
        promise.set_result(None)
