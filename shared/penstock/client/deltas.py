"""What a sequence gains: its token ids as text, ended by the first stop string, and how outputs of
the engine core become deltas that can be put together again."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.protocol.common import ErrorCode, FinishReason, TokenLogprobs
from penstock.protocol.to_frontend import SequenceOutput
from penstock.text.detokenizer import Detokenizer, make_detokenizer
from penstock.text.stop import IndentedText, StopMatcher
from penstock.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from penstock.request.sampling_params import SamplingParams


class SequenceDelta(msgspec.Struct, kw_only=True):
    """What one sequence gained since its last delta.

    text: ready to show (never half a character, never part of a stop string); it may lag behind
    token_ids, and catches up with the last delta.  logprobs: one per token id when asked for.
    finish_reason: set on the sequence's last delta.  stop_reason: the stop string or stop token id
    that ended it (None for EOS).  error: why, when finish_reason is "error"; error_code: set too
    where the request itself is to blame, or may come again.
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
    """The deltas of a request that nobody has taken yet, at most one for each sequence."""

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
    """What a consumer has of a sequence already: so many tokens, and whether it has also
    been told of the sequence's end."""

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
