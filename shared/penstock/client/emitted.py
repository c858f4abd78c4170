"""What a sequence emits: its token ids as text, ended by the first stop string, of tokens that
arrive or once more of those that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.client.deltas import GrowingDelta, SequenceDelta
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_frontend import SequenceOutput
from penstock.text.detokenizer import Detokenizer, make_detokenizer
from penstock.text.stop import IndentedText, StopMatcher
from penstock.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from penstock.request.sampling_params import SamplingParams


class Piece(NamedTuple):
    """text: safe to show.  used: how many of the pushed ids belong to the answer.
    stop: the stop string that ended it, if one did; empty: a line's indentation did."""

    text: str
    used: int
    stop: str | None = None


class SequenceText:
    """Feeds ids through the detokeniser and the stop matcher, one by one where a stop string could
    end the text, so that the token at which it ended doesn't depend on how the ids arrived.

    Text of the first `min_tokens` tokens is never searched for stop strings.
    min_indentation: as in SamplingParams.
    include_stop: the stop string that ends the text is part of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        stop: tuple[str, ...],
        min_tokens: int,
        min_indentation: int = 0,
        include_stop: bool = False,
    ) -> None:
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens)
        self._matcher: StopMatcher | IndentedText | None = StopMatcher(stop) if stop else None
        if min_indentation:
            self._matcher = IndentedText(min_indentation, self._matcher)
        self._min_tokens = min_tokens
        self.include_stop = include_stop
        self._count = 0

    @property
    def plain(self) -> Detokenizer | None:
        """What has a `push` in fewer steps, where no stop string can end the text; None where one
        can."""
        return self._detokenizer if self._matcher is None else None

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

    __slots__ = ("_plain", "_text", "emitted")

    def __init__(self, text: SequenceText) -> None:
        self.emitted: list[int] = []
        self._text = text
        self._plain = text.plain

    @property
    def plain(self) -> Detokenizer | None:
        """What turns its ids into text, where they and text are all that it gains before its end;
        None where they aren't."""
        return self._plain

    def resume(self, emitted: list[int]) -> None:
        """Takes what it has emitted before, which is no part of its deltas."""
        self.emitted.extend(emitted)
        if self._plain is not None:
            self._plain.push(emitted)
        else:
            self._text.push(emitted)

    def replayed(self) -> SequenceDelta | None:
        """Returns what tokens gained that were known before; None, as there are none here: all that
        this sequence gains is in what `take` returns."""
        return None

    def take(self, output: SequenceOutput) -> SequenceDelta:
        """Returns what the sequence gains by an output; of one that ends at a stop string, without
        what lies after that."""
        self.emitted.extend(output.tokens)
        plain = self._plain
        if plain is not None and output.finish is None:
            return SequenceDelta(
                index=output.sequence,
                text=plain.push(output.tokens),
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


class KnownTokens(NamedTuple):
    """How many tokens of a sequence a consumer has received, and whether it has also received the
    sequence's end."""

    tokens: int
    ended: bool = False


class ReplayedSequence(EmittedSequence):
    """A sequence that is computed again for a consumer who has its beginning. What that gains is
    kept apart, and the deltas go on after it."""

    __slots__ = ("_known", "_replayed")

    def __init__(self, text: SequenceText, known: KnownTokens) -> None:
        super().__init__(text)
        self._known = known
        self._replayed: GrowingDelta | None = None

    @property
    def plain(self) -> None:
        """None: some of what it gains is known."""

    def take(self, output: SequenceOutput) -> SequenceDelta:
        """Returns what the sequence gains by an output, without the tokens that are known."""
        left = self._known.tokens - len(self.emitted)
        if left <= 0 and not self._known.ended:
            return super().take(output)
        if self._known.ended or len(output.tokens) <= left:
            return self._keep(super().take(output))
        ended = self._keep(super().take(_part(output, 0, left)))
        if ended.finish_reason is not None:  # Not where the consumer's word is true.
            return ended
        return super().take(_part(output, left, len(output.tokens)))

    def replayed(self) -> SequenceDelta | None:
        """What the known tokens gained since the last call; None: nothing."""
        growing, self._replayed = self._replayed, None
        return None if growing is None else growing.whole()

    def _keep(self, delta: SequenceDelta) -> SequenceDelta:
        """Returns the delta without what is known."""
        if self._replayed is None:
            self._replayed = GrowingDelta(delta)
        else:
            self._replayed.add(delta)
        logprobs: list[TokenLogprobs] | None = None if delta.logprobs is None else []
        return msgspec.structs.replace(delta, text="", token_ids=[], logprobs=logprobs)


def _part(output: SequenceOutput, begin: int, end: int) -> SequenceOutput:
    """Some of an output's tokens; the end of the sequence comes with the last."""
    logprobs = output.logprobs
    part = msgspec.structs.replace(
        output,
        tokens=output.tokens[begin:end],
        logprobs=None if logprobs is None else logprobs[begin:end],
    )
    if end == len(output.tokens):
        return part
    return msgspec.structs.replace(part, finish=None, stop_token=None, error=None, error_code=None)


def emitted_sequences(
    tokenizer: Tokenizer, params: SamplingParams, known: Sequence[KnownTokens]
) -> list[EmittedSequence]:
    """The n sequences of a request. known: what its consumer has of each; empty: nothing."""
    texts = [
        SequenceText(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop_strings,
            min_tokens=params.min_tokens,
            min_indentation=params.min_indentation,
            include_stop=params.include_stop_str_in_output,
        )
        for _ in range(params.n)
    ]
    if not known:
        return [EmittedSequence(text) for text in texts]
    return [ReplayedSequence(text, each) for text, each in zip(texts, known, strict=True)]


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
