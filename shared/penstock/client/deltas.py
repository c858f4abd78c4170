"""What a sequence gains, as deltas that can be put together again."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import msgspec

from penstock.protocol.common import ErrorCode, FinishReason, TokenLogprobs

if TYPE_CHECKING:
    pass


class SequenceDelta(msgspec.Struct, kw_only=True):
    """What one sequence gained since its last delta.

    text: ready to show (never half a character, never part of a stop string); it may lag token_ids,
    and catches up with the last delta.  logprobs: one per token id when asked for. finish_reason:
    set on the sequence's last delta.  stop_reason: the stop string or stop token id that ended it
    (None for EOS).  error: why, when finish_reason is "error"; error_code: set too where the
    request itself is to blame, or may come again.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    error_code: ErrorCode | None = None


class GrowingDelta:
    """Deltas of one sequence, one after the other, on their way to being one: in time and memory
    that grow with what they hold, however many they are."""

    __slots__ = ("_last", "_logprobs", "_text", "_token_ids")

    def __init__(self, first: SequenceDelta) -> None:
        self._text = StringIO()
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None
        self.add(first)

    def add(self, later: SequenceDelta) -> None:
        """Takes the next one."""
        self._last = later
        self._text.write(later.text)
        self._token_ids.extend(later.token_ids)
        if later.logprobs is None:
            return
        if self._logprobs is None:
            self._logprobs = []
        self._logprobs.extend(later.logprobs)

    def whole(self) -> SequenceDelta:
        """All of them as one, which may be kept. Takes time: ask for it once."""
        return msgspec.structs.replace(
            self._last,
            text=self._text.getvalue(),
            token_ids=self._token_ids,
            logprobs=self._logprobs,
        )


class Pending:
    """The deltas of a request that haven't been taken yet, at most one for each sequence."""

    __slots__ = ("_deltas", "_only")

    def __init__(self) -> None:
        self._only: SequenceDelta | None = None  # The one that there is, mostly.
        self._deltas: dict[int, SequenceDelta | GrowingDelta] = {}  # If there were more.

    def __len__(self) -> int:
        return len(self._deltas) if self._only is None else 1

    def add(self, delta: SequenceDelta) -> None:
        """What a sequence gained."""
        if self._only is None and not self._deltas:
            self._only = delta
            return
        if self._only is not None:
            self._deltas[self._only.index], self._only = self._only, None
        waiting = self._deltas.get(delta.index)
        if waiting is None:
            self._deltas[delta.index] = delta
        elif isinstance(waiting, GrowingDelta):
            waiting.add(delta)
        else:
            growing = self._deltas[delta.index] = GrowingDelta(waiting)
            growing.add(delta)

    def peek(self) -> list[SequenceDelta]:
        """Returns all deltas, one for each sequence; they stay until `clear`."""
        if self._only is not None:
            return [self._only]
        for index, waiting in self._deltas.items():
            if isinstance(waiting, GrowingDelta):
                self._deltas[index] = waiting.whole()
        return [delta for delta in self._deltas.values() if isinstance(delta, SequenceDelta)]

    def take(self) -> list[SequenceDelta]:
        """Returns all deltas, and removes them from here."""
        deltas = self.peek()
        self.clear()
        return deltas

    def clear(self) -> None:
        """Forgets the deltas: they have been taken."""
        self._only = None
        if self._deltas:
            self._deltas.clear()
