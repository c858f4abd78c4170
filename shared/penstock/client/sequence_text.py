"""Turns one sequence's token ids into its text, ended by the first stop string, and outputs of the
engine core into deltas."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.client.deltas import SequenceDelta
from penstock.protocol.to_frontend import SequenceOutput
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
        self.include_stop = include_stop
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
                texts.append(matched if self.include_stop else "")
                return Piece("".join(texts), position, matched)
        return Piece("".join(texts), len(ids))

    def finish(self) -> Piece:
        """Returns the text that was held back, at the end of the sequence."""
        rest = self._detokenizer.finish()
        if self._matcher is None:
            return Piece(rest, 0)
        emitted, matched = self._matcher.push(rest)
        if matched is not None:
            return Piece(emitted + (matched if self.include_stop else ""), 0, matched)
        return Piece(emitted + self._matcher.finish(), 0)


class EmittedSequence:
    """Token ids that an open sequence has emitted, and its text."""

    __slots__ = ("_plain_push", "_text", "emitted")

    def __init__(self, text: SequenceText) -> None:
        self.emitted: list[int] = []
        self._text = text
        self._plain_push = text.plain_push

    def take(self, output: SequenceOutput) -> SequenceDelta:
        """Returns what the sequence gains by an output; of one that ends at a stop string, without
        what lies after that."""
        self.emitted.extend(output.tokens)
        if self._plain_push is not None and output.finish is None:
            return SequenceDelta(
                index=output.sequence,
                text=self._plain_push(output.tokens),
                token_ids=output.tokens,
                logprobs=output.logprobs,
            )
        ended_by_token = output.finish == "stop" and bool(output.tokens)
        # The token that ended the sequence counts, but is shown only if that was asked for.
        hides_last = ended_by_token and not self._text.include_stop
        piece = self._text.push(output.tokens[:-1] if hides_last else output.tokens)
        if piece.stop is not None:
            return _stopped_by_string(output, piece)
        text, stop = piece.text, None
        if output.finish is not None:
            last = self._text.finish()
            text, stop = text + last.text, last.stop
        return SequenceDelta(
            index=output.sequence,
            text=text,
            token_ids=list(output.tokens),
            logprobs=output.logprobs,
            finish_reason=output.finish if stop is None else "stop",
            stop_reason=output.stop_token if stop is None else stop,
            error=output.error,
            error_code=output.error_code,
        )


def _stopped_by_string(output: SequenceOutput, piece: Piece) -> SequenceDelta:
    used = piece.used
    return SequenceDelta(
        index=output.sequence,
        text=piece.text,
        token_ids=output.tokens[:used],
        logprobs=output.logprobs[:used] if output.logprobs is not None else None,
        finish_reason="stop",
        stop_reason=piece.stop,
    )
