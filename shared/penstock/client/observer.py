"""The interface of those that observe a client's requests, as counts, limits and traces do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.client.deltas import SequenceDelta
    from penstock.protocol.common import AdapterFile, FinishReason
from penstock.client.timing import RequestTiming


class RequestObserver:
    """Hears of one request, in the order of its methods; overrides what it cares about.

    A request for vectors has `admit` and `submitted` only.  All but `admit` are called between
    tokens, so they must be quick and must not raise.
    """

    __slots__ = ()

    @property
    def timed(self) -> bool:
        """Whether the engine core is to say where the request's time went."""
        return False

    async def admit(self) -> None:
        """The request is about to be submitted. What this raises refuses it."""

    def submitted(self, request: ObservedRequest) -> None:
        """An engine core has accepted the generation, or is about to get the search or input."""

    def first_token(self, request: ObservedRequest) -> None:
        """The consumer has the first token of all its sequences."""

    def delta(self, tokens: int, elapsed: float | None) -> None:
        """The consumer has more tokens of a sequence. elapsed: seconds since those before; None for
        a sequence's first ones, and in a beam search, whose sequences branch."""

    @property
    def told(self) -> Callable[[int, float | None], None]:
        """What to call in place of `delta`, from when the request is submitted."""
        return self.delta

    def finished(self, reason: FinishReason, sequences: int) -> None:
        """Called when so many sequences have ended; a beam search ends as one."""

    def ended(self, request: ObservedRequest) -> None:
        """Called when all sequences have ended, or the consumer has left."""

    def keep(self, release: Callable[[], None]) -> bool:
        """The consumer is done with it. True: the client keeps it until the engine core has given
        the account that `timed` asks for, or until `release` is called."""
        return False


class Observer(Protocol):
    """Hears of all requests of an EngineClient."""

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        """Called in the task that submits; None: this request isn't observed."""


class RequestEvents:
    """What happens to a request, as its client notes it, without an observer."""

    __slots__ = ()

    @property
    def timed(self) -> bool:
        """Whether the engine core is to say where the request's time went."""
        return False

    def accepted(self, timing: RequestTiming | None, max_tokens: int | None = None) -> None:
        """The request runs, or is about to. timing: filled from now on, if there is any.
        max_tokens: that each of its sequences may gain; None: not known."""

    def entered(self) -> None:
        """A sequence of it is in a step."""

    def found_cached(self, tokens: int) -> None:
        """Called when so many tokens of the prompt were found in the KV cache."""

    def give(self, deltas: Iterable[SequenceDelta]) -> None:
        """The consumer has taken these."""

    @property
    def told(self) -> Callable[[int, float | None], None]:
        """What to call where the consumer has more tokens, of which `gained` tells later: with how
        many there are, and the seconds since those before."""
        return _untold

    @property
    def last_gain(self) -> float:
        """Time at which the sequence that gained last did so."""
        return 0.0

    def gained(self, tokens: int, last: float) -> None:
        """The consumer has taken so many more tokens of the sequence that gained last, the last of
        them at `last`; the observer has been notified of each."""

    def gain(self, tokens: int) -> None:
        """A beam search has more tokens."""

    def fail(self) -> None:
        """The consumer has met an error."""

    def leave(self, release: Callable[[], None]) -> bool:
        """The consumer is done with it. Returns what RequestObserver.keep does."""
        return False

    def end_search(self, reason: FinishReason) -> None:
        """A beam search is over."""


def _untold(tokens: int, elapsed: float | None) -> None:
    """Does nothing: there is no observer."""


UNOBSERVED = RequestEvents()


class _Gain:
    """What a sequence has gained so far. last: when it last did."""

    __slots__ = ("index", "last", "tokens")

    def __init__(self, index: int, last: float, tokens: int) -> None:
        self.index = index
        self.last = last
        self.tokens = tokens


class ObservedRequest(RequestEvents):
    """What the consumer of one request has been given, for its observer. Moments are those of
    time.perf_counter(), in seconds."""

    __slots__ = (
        "_accepted",
        "_gains",
        "_latest",
        "_observer",
        "_open",
        "adapter",
        "begun",
        "cached_tokens",
        "entered_at",
        "first_token",
        "generated_tokens",
        "last_reason",
        "last_token",
        "max_tokens",
        "prompt_tokens",
        "reasons",
        "sequences",
        "timing",
    )

    def __init__(
        self,
        observer: RequestObserver,
        prompt_tokens: int,
        sequences: int,
        adapter: str = "",
    ) -> None:
        self._observer = observer
        self.adapter = adapter  # Digest of the one that is applied; empty: none is.
        self._accepted = False
        self._open = 0  # Sequences whose end the consumer has not seen.
        self._gains: dict[int, _Gain] = {}  # By sequence; not of a beam search, which branches.
        self._latest: _Gain | None = None  # Of the sequence that gained last: mostly the only one.
        self.begun = time.perf_counter()
        self.prompt_tokens = prompt_tokens
        self.sequences = sequences
        self.cached_tokens: int | None = None
        self.generated_tokens = 0
        self.max_tokens: int | None = None  # That each sequence may gain; None: not known.
        self.entered_at: float | None = None  # When one of its sequences was first in a step.
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.reasons: dict[int, FinishReason] = {}  # By sequence, of those that said it.
        self.last_reason: FinishReason | None = None  # Of all others.
        self.timing: RequestTiming | None = None

    @property
    def tokens_by_sequence(self) -> dict[int, int]:
        """Emitted tokens of the sequences that have some; empty for a beam search."""
        return {index: gain.tokens for index, gain in self._gains.items()}

    @property
    def timed(self) -> bool:
        return self._observer.timed

    def accepted(self, timing: RequestTiming | None, max_tokens: int | None = None) -> None:
        self._accepted = True
        self.timing = timing
        self.max_tokens = max_tokens
        self._open = self.sequences
        self._observer.submitted(self)

    def entered(self) -> None:
        if self.entered_at is None:  # Later ones come after a preemption.
            self.entered_at = time.perf_counter()

    def found_cached(self, tokens: int) -> None:
        if self.cached_tokens is None:  # Later steps of a search find what its first ones left.
            self.cached_tokens = tokens

    def give(self, deltas: Iterable[SequenceDelta]) -> None:
        now = time.perf_counter()
        for delta in deltas:
            if delta.token_ids:
                gained, gain = len(delta.token_ids), self._latest
                if gain is None or gain.index != delta.index:
                    gain = self._latest = self._gains.get(delta.index)
                if gain is None:
                    gain = self._latest = self._gains[delta.index] = _Gain(delta.index, now, gained)
                    self._gain(gained, now, None)
                else:
                    elapsed, gain.last = now - gain.last, now
                    gain.tokens += gained
                    self.generated_tokens += gained
                    self.last_token = now
                    self._observer.delta(gained, elapsed)
            if delta.finish_reason is not None and self._open:
                self.reasons[delta.index] = delta.finish_reason
                self._observer.finished(delta.finish_reason, 1)
                self._open -= 1
                if not self._open:
                    self._observer.ended(self)

    @property
    def told(self) -> Callable[[int, float | None], None]:
        return self._observer.told

    @property
    def last_gain(self) -> float:
        return 0.0 if self._latest is None else self._latest.last

    def gained(self, tokens: int, last: float) -> None:
        if self._latest is not None:
            self._latest.tokens += tokens
            self._latest.last = last
        self.generated_tokens += tokens
        self.last_token = last

    def gain(self, tokens: int) -> None:
        self._gain(tokens, time.perf_counter(), None)

    def fail(self) -> None:
        self._end("error", self._open)

    def leave(self, release: Callable[[], None]) -> bool:
        if not self._accepted:
            return False
        kept = self._observer.keep(release)
        self._end("abort", self._open)
        return kept

    def end_search(self, reason: FinishReason) -> None:
        self._end(reason, 1)

    def _gain(self, tokens: int, now: float, elapsed: float | None) -> None:
        self.generated_tokens += tokens
        self.last_token = now
        if self.first_token is None:
            self.first_token = now
            self._observer.first_token(self)
        self._observer.delta(tokens, elapsed)

    def _end(self, reason: FinishReason, sequences: int) -> None:
        if not self._open:
            return
        self._open = 0
        self.last_reason = reason
        self._observer.finished(reason, sequences)
        self._observer.ended(self)


async def observe(
    observer: Observer | None,
    prompt_tokens: int,
    sequences: int,
    adapter: AdapterFile | None = None,
) -> RequestEvents:
    """Announces a request. Raises what its observer refuses it with."""
    hears = None if observer is None else observer.request(prompt_tokens)
    if hears is None:
        return UNOBSERVED
    await hears.admit()
    digest = "" if adapter is None else adapter.digest
    return ObservedRequest(hears, prompt_tokens, sequences, digest)


class Observers:
    """Several observers as one. They are notified in their order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        interested = []
        for each in self._observers:
            if (heard := each.request(prompt_tokens)) is not None:
                interested.append(heard)
        if len(interested) < 2:
            return interested[0] if interested else None
        return _Several(interested)


class _Several(RequestObserver):
    def __init__(self, observers: list[RequestObserver]) -> None:
        self._observers = observers
        base = RequestObserver.delta
        self._told_deltas = [each.delta for each in observers if type(each).delta is not base]

    @property
    def timed(self) -> bool:
        return any(each.timed for each in self._observers)

    async def admit(self) -> None:
        for each in self._observers:
            await each.admit()

    def submitted(self, request: ObservedRequest) -> None:
        for each in self._observers:
            each.submitted(request)

    def first_token(self, request: ObservedRequest) -> None:
        for each in self._observers:
            each.first_token(request)

    def delta(self, tokens: int, elapsed: float | None) -> None:
        for notify in self._told_deltas:
            notify(tokens, elapsed)

    @property
    def told(self) -> Callable[[int, float | None], None]:
        return self._told_deltas[0] if len(self._told_deltas) == 1 else self.delta

    def finished(self, reason: FinishReason, sequences: int) -> None:
        for each in self._observers:
            each.finished(reason, sequences)

    def ended(self, request: ObservedRequest) -> None:
        for each in self._observers:
            each.ended(request)

    def keep(self, release: Callable[[], None]) -> bool:
        kept = [each.keep(release) for each in self._observers]  # Each must be called.
        return any(kept)
