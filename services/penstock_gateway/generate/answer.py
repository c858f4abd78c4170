"""Turns the deltas of a batch into a reply, whole or streamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import UNSET

from penstock.client.turn_budget import forget
from penstock_gateway.generate.batch import Arrivals, GenerationBatch
from penstock_gateway.generate.chunked_reply import PIECE, Pace, parts_of
from penstock_gateway.generate.reply import (
    ChoiceOutput,
    PlainChunk,
    ReplyFormat,
    UsageField,
    UsageInfo,
)
from penstock_gateway.generate.timeline import TimelineRecorder
from penstock_gateway.http.events import EventStream
from penstock_gateway.request.fields import StreamOptions

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.client.delivery import Put
    from penstock_gateway.generate.search import SearchResult
    from penstock_gateway.http.prompt_write import TextWrite


async def whole_answer(
    batch: GenerationBatch, reply: ReplyFormat, prompt_tokens: int, recorder: TimelineRecorder
) -> list[bytes]:
    """The unstreamed reply, in pieces. Raises what a sequence failed with."""
    reply.begin(batch.prompt_logprobs)
    choices = [ChoiceOutput() for _ in range(batch.choices)]
    async for arrivals in batch.arrivals():
        for index, delta in arrivals:
            failure = batch.failure(delta, reply)
            if failure is not None:
                raise failure
            choices[index].add(delta)
    completion_tokens = sum(len(choice.token_ids) for choice in choices)
    timeline = await recorder.asked_for(batch.timings, batch.n)
    usage = UsageInfo.of(prompt_tokens, completion_tokens, batch.cached_tokens)
    usage = usage.with_predicted(batch.predicted)
    pieces = await reply.whole(choices, usage, timeline or UNSET)
    if len(choices) > 1:
        await forget(choices)
    return pieces


async def searched_answer(
    found: list[SearchResult], reply: ReplyFormat, prompt_tokens: int
) -> list[bytes]:
    """The reply that shows what searches have found: one of them for each prompt."""
    reply.begin(lambda prompt: found[prompt].prompt_logprobs)
    completion_tokens = sum(each.generated for each in found)
    usage = UsageInfo.of(prompt_tokens, completion_tokens, sum(each.cached for each in found))
    choices = [choice for each in found for choice in each.choices]
    return await reply.whole(choices, usage, UNSET)


class StreamedAnswer:
    """Writes a batch's deltas as events. All deltas of one wake-up leave in one send.

    What can be written at once is, as it comes in (`_write_now`); `run` does the rest: the end of
    the stream, failures, and whatever has to wait for a slow reader.
    """

    __slots__ = (
        "_batch",
        "_choices",
        "_completion_tokens",
        "_counts_usage",
        "_error",
        "_events",
        "_include_usage",
        "_no_usage",
        "_open",
        "_opened",
        "_plain",
        "_prepared",
        "_prepared_for",
        "_prompt_tokens",
        "_recorder",
        "_reply",
        "_text",
        "_unsent",
        "_written",
    )

    def __init__(
        self,
        reply: ReplyFormat,
        options: StreamOptions | None,
        choices: int,
        prompt_tokens: int,
        recorder: TimelineRecorder,
        known_tokens: int = 0,
    ) -> None:
        """known_tokens: of the answer, that the client has already."""
        self._reply = reply
        self._include_usage = bool(options and options.include_usage)
        self._counts_usage = bool(
            options and options.include_usage and options.continuous_usage_stats
        )
        """Whether each chunk says what was used so far."""
        self._no_usage: UsageField = None if self._include_usage else UNSET
        """The usage of events that tell none."""
        self._choices = choices
        self._recorder = recorder
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = known_tokens
        self._batch: GenerationBatch | None = None
        self._open = choices
        self._events: EventStream | None = None
        self._error: Exception | None = None
        self._opened = False
        self._plain: PlainChunk | None = None
        """Writes what the only choice gains, once it has begun, where that is text alone."""
        self._prepared: PlainChunk | None = None
        """What `_plain` will be, where the beginning is written before the first token comes."""
        self._prepared_for: str | None = None
        """The fingerprint that is in the written beginning."""
        self._text: TextWrite | None = None
        """What the only choice gains, where it is text alone, goes there and not through here."""
        self._unsent = bytearray()
        """Events that go out with the next ones."""
        self._written: bytes | bytearray = b""
        """Events that `_put_now` sends."""

    async def run(self, batch: GenerationBatch, events: EventStream) -> None:
        """Streams until every sequence has finished. Raises what a sequence failed with, after
        what came before has been written."""
        self._batch, self._events = batch, events
        self._reply.begin(batch.prompt_logprobs)
        self._prepare()
        batch.feed(self._write_now)
        async for arrivals in batch.arrivals():
            out = self._unsent
            failure = self._error or await self._append(batch, events, arrivals)
            if failure is not None:
                if events.started:
                    await events.write(self._reply.spliced(out))
                raise failure
            if not self._open:
                break
            await self._send(events)
        out = self._unsent
        if self._include_usage:
            self._reply.usage(out, self._total())
        timeline = await self._recorder.asked_for(batch.timings, batch.n, events.write_seconds)
        if timeline is not None:
            self._reply.timeline(out, timeline)
        await self._reply.ends(self._total())
        self._reply.end(out, self._total())
        await events.write(lambda: self._reply.spliced(out), last=True)

    def _write_now(self, deltas: list[SequenceDelta]) -> Put | None:
        """A Sink: takes deltas that can be written at once. Ends only where there is nothing but
        text: others may be long, or have to wait for what is done before them."""
        events, batch = self._events, self._batch
        if events is None or batch is None or self._error is not None:
            return None
        if not events.can_write_now():
            return None
        try:
            self._check_prepared(batch)
            plain = self._plain
            for delta in deltas:
                if delta.finish_reason is not None:
                    if plain is None or events.before_last or batch.failure(delta, self._reply):
                        return None
                    plain = None
            if plain is not None and not self._unsent:
                [delta] = deltas
                self._written = plain.event(delta.text) if delta.text else b""
                self._completion_tokens += len(delta.token_ids)
            elif self._prepared is not None and len(deltas) == 1:
                self._begin(self._prepared, deltas[0])
            elif self._reply.is_large(deltas):
                return None
            else:
                self._write_any(deltas)
        except Exception as error:
            self._error = error  # For `run` to raise.
            return None
        return self._put_now

    def _prepare(self) -> None:
        """Writes what a stream of plain text begins with, while nothing has come: first tokens of
        many streams may come in one step, and each waits for the work on those before it."""
        if self._choices == 1 and not self._counts_usage:
            self._prepared = self._reply.plain_chunk(0, self._no_usage)
            if self._prepared is not None:
                self._prepared_for = None if self._batch is None else self._batch.fingerprint
                self._open_choices(self._unsent)

    def _check_prepared(self, batch: GenerationBatch) -> None:
        """Throws away what was written before the first token came, where another engine core than
        was expected computes that."""
        if self._prepared is None or batch.fingerprint == self._prepared_for:
            return
        self._prepared, self._opened = None, False
        self._unsent.clear()
        self._reply.begin(batch.prompt_logprobs)

    def _begin(self, plain: PlainChunk, delta: SequenceDelta) -> None:
        """Writes the first delta, which ends nothing, after what was prepared."""
        written = self._unsent + (plain.event(delta.text) if delta.text else b"")
        self._completion_tokens += len(delta.token_ids)
        self._written, self._unsent = written, bytearray()
        self._plain, self._prepared = plain, None

    def _write_any(self, deltas: list[SequenceDelta]) -> None:
        # A copy: a delta that fails half-way changes nothing.
        out, usage = bytearray(self._unsent), self._no_usage
        self._open_choices(out)
        for delta in deltas:
            self._completion_tokens += len(delta.token_ids)
            self._open -= delta.finish_reason is not None
            if self._counts_usage:
                usage = self._total()
            self._reply.delta(out, delta.index, delta, usage)
            self._reply.place(out, delta.index)
        if out:
            self._written, self._unsent = out, bytearray()
        if self._choices == 1 and not self._counts_usage:
            self._plain = self._reply.plain_chunk(0, self._no_usage)

    def _put_now(self) -> None:
        """Sends what `_write_now` has written."""
        events, written, self._written = self._events, self._written, b""
        if not written or events is None:
            return
        try:
            events.write_now(written)
            if self._plain is not None and self._text is None:
                self._pass_text_on(self._plain, events)
        except Exception as error:
            self._error = error  # For `run` to raise with what comes next.

    def _pass_text_on(self, plain: PlainChunk, events: EventStream) -> None:
        self._text = events.text(*plain.around)
        if self._text is not None and self._batch is not None:
            self._batch.feed_text(self._text)

    async def _append(
        self, batch: GenerationBatch, events: EventStream, arrivals: Arrivals
    ) -> Exception | None:
        """Large deltas are written and sent in turns."""
        self._check_prepared(batch)
        out, reply, pace = self._unsent, self._reply, Pace()
        self._open_choices(out)
        for index, delta in arrivals:
            failure = batch.failure(delta, reply)
            if failure is not None:
                return failure
            parts: Iterable[SequenceDelta] = (delta,)
            if reply.is_large([delta]):
                await reply.ahead(index)
                parts = parts_of(delta)
            for part in parts:
                self._completion_tokens += len(part.token_ids)
                self._open -= part.finish_reason is not None
                reply.delta(out, index, part, self._usage_so_far())
                await pace.rest()
                if len(out) > PIECE:
                    await self._send(events)
            reply.place(out, index)
        return None

    async def _send(self, events: EventStream) -> None:
        """Sends what has been written by now."""
        if self._unsent:
            pieces = self._reply.spliced(self._unsent)
            self._unsent.clear()
            await events.write(pieces)

    def _open_choices(self, out: bytearray) -> None:
        """Once, when the first delta is there: what was found in the cache is known then."""
        if not self._opened:
            self._opened = True
            begun = self._total()
            for choice in range(self._choices):
                self._reply.opening(out, choice, self._usage_so_far(), begun)

    def _total(self) -> UsageInfo:
        batch = self._batch
        cached = batch.cached_tokens if batch is not None else 0
        completion_tokens = self._completion_tokens
        if self._text is not None:
            completion_tokens += self._text.tokens
        usage = UsageInfo.of(self._prompt_tokens, completion_tokens, cached)
        return usage if batch is None else usage.with_predicted(batch.predicted)

    def _usage_so_far(self) -> UsageField:
        return self._total() if self._counts_usage else self._no_usage
