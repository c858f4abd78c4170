"""How a request's output reaches its consumer: as deltas, or by the shortest way from an engine
core's output to a connection, where its tokens are nothing but text.

What a token costs with many streams is what it has to fetch: between two tokens of a stream, those
of all others push its objects out of the processor's caches.  So that way has few objects, and
makes few for a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.client.deltas import SequenceDelta
from penstock.client.emitted import KnownTokens
from penstock.client.observer import UNOBSERVED, RequestEvents
from penstock.client.session_turns import ConsumerTurns, TextSink
from penstock.client.timing import RequestTiming

if TYPE_CHECKING:
    from penstock.client.emitted import EmittedSequence
    from penstock.text.tokenizer import Tokenizer

Put = Callable[[], None]
"""Puts what a Sink has taken onto the wire."""

Sink = Callable[[list[SequenceDelta]], Put | None]
"""Takes deltas at once and returns what puts them onto the wire, to be called before anything else
happens to the request; or returns None and leaves them as they are."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a request's output reaches its consumer, and which observer is notified."""

    tokenizer: Tokenizer
    turns: ConsumerTurns[Any]
    """What calls `flush` soon when a generation with a sink has deltas, and wakes its consumer."""
    observed: RequestEvents = UNOBSERVED
    timed: bool = False
    """Whether the generation keeps its timing."""
    read_at_end: bool = False
    """Whether nobody reads tokens before the end, so that they may come several at a time."""
    known: Sequence[KnownTokens] = ()
    """What the consumer has already, of each sequence; empty: nothing."""


class PlainText:
    """Outputs of a sequence that is a request's only one, has no stop strings and has begun, and
    whose consumer waits while `sink` takes its deltas' text.

    It holds for as long as nothing but text comes and the sink takes it (see `Generation.feed`);
    its observer is notified of each token, and the counts of its observed request follow at the
    end.
    """

    __slots__ = (
        "_detokenizer",
        "_emitted",
        "_last",
        "_notify",
        "_observed",
        "_seconds",
        "_sink",
        "_timing",
        "_tokens",
        "_turns",
    )

    def __init__(
        self,
        sequence: EmittedSequence,
        sink: TextSink,
        observed: RequestEvents,
        timing: RequestTiming | None,
        turns: ConsumerTurns[Any],
    ) -> None:
        """Raises ValueError for a sequence whose deltas aren't text alone."""
        if sequence.plain is None:
            raise ValueError("a sequence with stop strings, or one that is replayed")
        self._detokenizer = sequence.plain
        self._emitted = sequence.emitted
        self._sink = sink
        self._observed = observed
        self._timing = timing
        self._notify = observed.told
        self._turns = turns
        self._tokens = 0
        self._last = self._seconds = 0.0

    def take(self, tokens: list[int]) -> SequenceDelta | None:
        """Takes new ids. Returns what they add where the sink doesn't take it: from there on,
        everything is a delta until `begin`."""
        begun = time.perf_counter()
        self._emitted.extend(tokens)
        text = self._detokenizer.push(tokens)
        turns, sink, count = self._turns, self._sink, len(tokens)
        now = time.perf_counter()
        self._seconds += now - begun
        if turns.merging or not sink.take(text, count, now):
            return SequenceDelta(index=0, text=text, token_ids=tokens)
        if text:
            turns.written.append(sink)
        self._notify(count, now - self._last)
        self._last = now
        self._tokens += count
        return None

    def begin(self) -> None:
        """From now on, text comes this way."""
        self._last = self._observed.last_gain

    def end(self) -> None:
        """Text no longer comes this way: tells what has."""
        if self._tokens:
            self._observed.gained(self._tokens, self._last)
            self._tokens = 0
        if self._timing is not None:
            self._timing.detokenise += self._seconds
            self._seconds = 0.0
