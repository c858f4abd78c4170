"""Answers as Text Generation Inference gives them, whole and a token at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from penstock_gateway.generate.chunked_reply import JsonList, Splices, are_many, paced, steps
from penstock_gateway.generate.logprobs import LOWEST, token_text
from penstock_gateway.generate.reply import (
    PromptLogprobsSource,
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    WrittenAtOnce,
    append_event,
    encoder,
)
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_platforms.tgi.request import encoded

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.generate.timeline import RequestTimeline
    from penstock_gateway.http.errors import HTTPError
    from penstock_gateway.models.backend import EngineInfo


class GeneratedToken(msgspec.Struct, gc=False):
    """text: what the answer gains by the token. special: whether that is nothing, as for EOS."""

    id: int
    text: str
    logprob: float
    special: bool


TopTokens = list[GeneratedToken]


class Details(msgspec.Struct):
    """finish_reason: length, eos_token or stop_sequence.  prefill: always empty.  top_tokens: the
    likeliest at each place, with top_n_tokens."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[GeneratedToken]
    tokens: list[GeneratedToken]
    top_tokens: list[TopTokens] | UnsetType = UNSET


class GeneratedText(msgspec.Struct):
    """details: if they were asked for."""

    generated_text: str
    details: Details | UnsetType = UNSET
    penstock_timeline: TimelineField = UNSET


class StreamDetails(msgspec.Struct):
    """finish_reason: as Details has it.  input_length: tokens of the prompt."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int


class GeneratedPiece(msgspec.Struct):
    """An event of a stream: a token, the index-th from 1 on. The last one has the whole text, and
    details."""

    index: int
    token: GeneratedToken
    top_tokens: TopTokens | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGeneration:
    """What the answer to one prompt shows. prompt: what stands in front of the text.  tokens: of
    the prompt.  seed: None where nothing is drawn.  is_list: the reply is a list of one answer."""

    prompt: str
    tokens: int
    seed: int | None
    details: bool
    top_tokens: bool
    is_list: bool


def finish_word(finish_reason: str | None, stop_reason: int | str | None) -> str:
    """Why an answer ended, in Text Generation Inference's words."""
    if finish_reason != "stop":
        return "length"
    return "stop_sequence" if isinstance(stop_reason, str) else "eos_token"


@dataclass(slots=True)
class TGIFormat(WrittenAtOnce):
    """A ReplyFormat of the answer to one request."""

    head: ReplyHead
    tokenizer: Tokenizer
    wishes: ShownGeneration
    shows_aborts = True
    _texts: list[str] = field(default_factory=list)
    _tokens: int = 0
    _last: GeneratedToken = field(default_factory=lambda: GeneratedToken(-1, "", 0.0, True))

    def begin(self, source: PromptLogprobsSource) -> None:
        """Does nothing: probabilities of the prompt aren't shown."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        """A stream begins with its first token."""

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        return are_many(deltas)

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        tokens, tops = self._read(delta.token_ids, delta.logprobs)
        ends = delta.finish_reason is not None
        self._texts.append(delta.text)
        if not tokens and (delta.text or ends):
            tokens, tops = [msgspec.structs.replace(self._last, special=True)], [[]]
            self._tokens -= 1  # The same one again.
        if not tokens:
            return
        for token in tokens:
            token.text = ""
        tokens[-1].text = delta.text
        for at, (token, top) in enumerate(zip(tokens, tops, strict=True), start=1):
            self._tokens += 1
            piece = GeneratedPiece(self._tokens, token)
            if self.wishes.top_tokens:
                piece.top_tokens = top
            if ends and at == len(tokens):
                piece.generated_text = self.wishes.prompt + "".join(self._texts)
                piece.details = StreamDetails(
                    finish_word(delta.finish_reason, delta.stop_reason),
                    self._tokens,
                    self.wishes.seed,
                    self.wishes.tokens,
                )
            append_event(out, piece)
        self._last = tokens[-1]

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Adds nothing: the last event counts the tokens."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        """Adds nothing: an event is a token."""

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        """A stream ends with its last token."""

    def failed(self, error: HTTPError) -> bytes:
        return failed_generation(error)

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        choice, wishes, splices = choices[0], self.wishes, Splices()
        reply = GeneratedText(wishes.prompt + "".join(choice.texts), penstock_timeline=timeline)
        if wishes.details:
            details = Details(
                finish_word(choice.finish_reason, choice.stop_reason),
                len(choice.token_ids),
                wishes.seed,
                [],
                [],
            )
            await self._tell(choice, details, splices)
            reply.details = details
        return splices.spliced(encoder.encode([reply] if wishes.is_list else reply))

    async def _tell(self, choice: ChoiceOutput, details: Details, splices: Splices) -> None:
        tokens, tops = JsonList(), JsonList()
        async with paced(len(choice.token_ids)) as pace:
            for begin, end in steps(len(choice.token_ids)):
                sampled, likeliest = self._read(
                    choice.token_ids[begin:end], choice.logprobs[begin:end]
                )
                tokens.add(sampled)
                tops.add(likeliest)
                await pace.rest()
        details.tokens = splices.put(tokens.pieces())
        if self.wishes.top_tokens:
            details.top_tokens = splices.put(tops.pieces())

    def _read(
        self, ids: list[int], logprobs: list[TokenLogprobs] | None
    ) -> tuple[list[GeneratedToken], list[TopTokens]]:
        """Tokens with the vocabulary's texts, and the likeliest in the place of each."""
        if not logprobs:
            return [self._token(token, 0.0) for token in ids], [[] for _ in ids]
        tokens, tops = [], []
        for token, at in zip(ids, logprobs, strict=True):
            tokens.append(self._token(token, at.logprob))
            likeliest = zip(at.top_ids, at.top_logprobs, strict=False)
            tops.append([self._token(other, logprob) for other, logprob in likeliest])
        return tokens, tops

    def _token(self, token: int, logprob: float) -> GeneratedToken:
        special = token in self.tokenizer.special_ids
        text = token_text(self.tokenizer.token_bytes(token))
        return GeneratedToken(token, text, max(logprob, LOWEST), special)


def failed_generation(error: HTTPError) -> bytes:
    """The event that a failed stream ends with."""
    return b"data: " + encoded(error) + b"\n\n"


class TGISpec(ReplySpec, frozen=True):
    """wishes: see TGIFormat."""

    wishes: ShownGeneration

    def format(self, head: ReplyHead, engine: EngineInfo) -> TGIFormat:
        return TGIFormat(head, engine.text.tokenizer, self.wishes)
