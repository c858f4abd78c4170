"""The parts of one answer (text, thoughts, calls) as its text comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.client import SequenceDelta
from penstock.parsing import CallArguments, CallBegin, Content, Event, Reasoning
from penstock_gateway.chat.answer_reading import (
    AnswerReader,
    LogprobReader,
    MarkedReader,
    PlainReader,
    ReadEvent,
)
from penstock_gateway.chat.parsed_choice import Parsing
from penstock_gateway.chat.token_marks import MarkedDetokenizer, ReasoningTokens
from penstock_gateway.generate.chunked_reply import Pace, parts_of
from penstock_gateway.generate.logprobs import ChatLogprob

if TYPE_CHECKING:
    from penstock.text.detokenizer import Detokenizer
    from penstock_gateway.generate.logprobs import ChatLogprob


Whole = TypeVar("Whole", covariant=True)
"""What an endpoint makes of a part that has ended."""


class AnswerPart(Protocol[Whole]):
    """A part of an answer, which grows."""

    def begin(self) -> None: ...

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None: ...

    def finish(self, status: str) -> Whole:
        """status: completed, or that of an answer that was cut short in it."""


class PartKinds(Protocol[Whole]):
    """How an endpoint shows each kind of part. index: its place among the parts."""

    def text(self, index: int) -> AnswerPart[Whole]: ...

    def thoughts(self, index: int) -> AnswerPart[Whole]: ...

    def call(self, index: int, call_id: str, name: str) -> AnswerPart[Whole]:
        """Begins a call, whose text is its arguments as JSON."""


class AnswerParts(Generic[Whole]):
    """The parts of one answer, in the order of its text; at most the last of them is open.

    parsing: how the text is read; None: it is all text.  detokenizer: a fresh one, of the request's
    kind, where a text's log-probabilities are asked for.  draw: what ids of calls follow from;
    empty: from chance.
    """

    def __init__(
        self,
        kinds: PartKinds[Whole],
        parsing: Parsing | None,
        detokenizer: Detokenizer | None = None,
        draw: bytes = b"",
    ) -> None:
        self._kinds = kinds
        self._draw = draw
        self._parsing = parsing
        self._reader = _reader(parsing, detokenizer)
        self._reasoning = ReasoningTokens(None if parsing is None else parsing.closing)
        self._open: AnswerPart[Whole] | None = None
        self._kind: type[Event] | None = None
        """The kind of event that the open part is made of."""
        self._done: list[Whole] = []
        self.calls = 0
        """How many calls have begun, those that are not shown included."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens so far that were thoughts."""
        return self._reasoning.total

    def begin_text(self) -> None:
        """Opens a text before any of it is there."""
        self._begin(Content, self._kinds.text(0))

    def push(self, text: str, token_ids: list[int], logprobs: list[ChatLogprob]) -> None:
        """Takes the next piece of the answer. logprobs: of its tokens."""
        self._reasoning.add(token_ids)
        if self._reader is not None:
            self._take(self._reader.read(text, token_ids, logprobs))
        elif text or logprobs:
            self._text().add(text, logprobs)

    async def push_whole(self, text: str, token_ids: list[int], pace: Pace) -> None:
        """Takes all of an answer without log-probabilities. Marks may take microseconds each:
        others have their turns meanwhile."""
        for part in parts_of(SequenceDelta(index=0, text=text, token_ids=token_ids)):
            self.push(part.text, part.token_ids, [])
            await pace.rest()

    def finish(self, status: str) -> list[Whole]:
        """All parts. status: of the answer; what was cut short is the last part."""
        if self._reader is not None:
            self._take(self._reader.finish())
            rest = self._reader.rest()
            if rest and self._open is not None and self._kind is Content:
                self._open.add("", rest)
        self._close(status)
        return self._done

    def _take(self, events: list[ReadEvent]) -> None:
        for event, logprobs in events:
            if isinstance(event, CallBegin):
                self.calls += 1
                if self._shown():
                    self._begin(CallBegin, self._call(event))
            elif not event.text:
                continue
            elif isinstance(event, Content):
                self._text().add(event.text, logprobs)
            elif isinstance(event, Reasoning):
                self._reasoning.thought = True
                self._thoughts().add(event.text, [])
            elif isinstance(event, CallArguments) and self._shown() and self._open is not None:
                self._open.add(event.text, [])

    def _shown(self) -> bool:
        """Whether the call that is being read is one of those that may be shown."""
        most = self._parsing.most if self._parsing is not None else None
        return most is None or self.calls <= most

    def _text(self) -> AnswerPart[Whole]:
        if self._open is not None and self._kind is Content:
            return self._open
        return self._begin(Content, self._kinds.text(self._next))

    def _thoughts(self) -> AnswerPart[Whole]:
        if self._open is not None and self._kind is Reasoning:
            return self._open
        return self._begin(Reasoning, self._kinds.thoughts(self._next))

    def _call(self, call: CallBegin) -> AnswerPart[Whole]:
        draw = self._draw and b"%b %d" % (self._draw, self.calls)
        call_id = self._parsing.call_id(call, draw) if self._parsing is not None else ""
        return self._kinds.call(self._next, call_id, call.name)

    @property
    def _next(self) -> int:
        """The place of a part that begins now."""
        return len(self._done) + (self._open is not None)

    def _begin(self, kind: type[Event], part: AnswerPart[Whole]) -> AnswerPart[Whole]:
        self._close("completed")
        self._open, self._kind = part, kind
        part.begin()
        return part

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._done.append(self._open.finish(status))
            self._open = None


def _reader(parsing: Parsing | None, detokenizer: Detokenizer | None) -> AnswerReader | None:
    if parsing is None:
        return None
    parser, marking = parsing.make(), parsing.marking
    reader: AnswerReader
    if detokenizer is None:
        reader = PlainReader(parser)
    elif marking is None:
        reader = LogprobReader(parser, detokenizer)
    else:
        reader = LogprobReader(parser, MarkedDetokenizer(marking.marks, detokenizer))
    return reader if marking is None else MarkedReader(reader, marking)
