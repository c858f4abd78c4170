"""Turns one sequence's token ids into its text, ended by the first stop string."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.text.detokenizer import make_detokenizer
from penstock.text.stop import StopMatcher
from penstock.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """text: safe to show.  used: how many of the pushed ids belong to the answer.
    stop: the stop string that ended it, if one did."""

    text: str
    used: int
    stop: str | None = None


class SequenceText:
    """Feeds ids through the detokeniser and the stop matcher, one by one where a stop string could
    end the text, so that the token at which it ended doesn't depend on how the ids arrived.

    Text of the first `min_tokens` tokens is never searched for stop strings.
    include_stop: the stop string that ends the text is part of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        stop: tuple[str, ...],
        min_tokens: int,
        include_stop: bool = False,
    ) -> None:
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens)
        self._matcher = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._count = 0

    @property
    def plain_push(self) -> Callable[[list[int]], str] | None:
        """`push` where no stop string can end the text, in fewer steps; None where one can."""
        return self._detokenizer.push if self._matcher is None else None

    def push(self, ids: list[int]) -> Piece:
        """Takes the next ids; after a Piece with `stop` nothing more may be pushed."""
        if self._matcher is None:
            return Piece(self._detokenizer.push(ids), len(ids))
        texts: list[str] = []
        for position, token in enumerate(ids, start=1):
            self._count += 1
            text = self._detokenizer.push([token])
            if self._count <= self._min_tokens:
                texts.append(text)
                continue
            emitted, matched = self._matcher.push(text)
            texts.append(emitted)
            if matched is not None:
                texts.append(matched if self._include_stop else "")
                return Piece("".join(texts), position, matched)
        return Piece("".join(texts), len(ids))

    def finish(self) -> Piece:
        """Returns the text that was held back, at the end of the sequence."""
        rest = self._detokenizer.finish()
        if self._matcher is None:
            return Piece(rest, 0)
        emitted, matched = self._matcher.push(rest)
        if matched is not None:
            return Piece(emitted + (matched if self._include_stop else ""), 0, matched)
        return Piece(emitted + self._matcher.finish(), 0)
