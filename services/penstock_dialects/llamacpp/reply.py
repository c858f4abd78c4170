"""Answers as llama-server gives them, whole and in a stream."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock_dialects.llamacpp.request import FieldPath
from penstock_gateway.generate.chunked_reply import (
    JsonList,
    Pace,
    Splices,
    are_many,
    paced,
    steps,
)
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
from penstock_gateway.http.events import failed_stream

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.generate.timeline import RequestTimeline
    from penstock_gateway.http.errors import HTTPError
    from penstock_gateway.models.backend import EngineInfo


class Timings(msgspec.Struct):
    """Tokens, and milliseconds. cache_n: of the prompt, found in the KV cache; of several prompts
    0.  prompt_n: computed.  predicted_n: of the answer."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class LikelyToken(msgspec.Struct, gc=False):
    """A token that could have been. bytes: its UTF-8 bytes; half a character is possible."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProbabilities(LikelyToken, gc=False):
    """The token that was emitted, and the likeliest ones in its place, by the model alone: before
    temperature and the like."""

    top_logprobs: list[LikelyToken]


Probabilities = list[TokenProbabilities] | UnsetType


class LlamaPiece(msgspec.Struct, kw_only=True):
    """A piece of an answer, in a stream. tokens: its ids; they may be ahead of the text.
    tokens_predicted, tokens_evaluated: of the answer so far, and of the prompt.
    completion_probabilities: with n_probs."""

    index: int
    content: str
    tokens: list[int] = []
    id_slot: int = 0
    stop: bool = False
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    completion_probabilities: Probabilities = UNSET


class LlamaAnswer(LlamaPiece, kw_only=True):
    """An answer, or the end of one in a stream. tokens: with return_tokens.  stop_type: `eos`,
    `word` or `limit`.  stopping_word: the stop string.  truncated: whether some of input_extra was
    left out.  tokens_cached: of the prompt, found in the KV cache.  generation_settings, prompt:
    what the request came to, and its prompt; from /completion.  has_new_line: whether the answer
    has one."""

    stop: bool = True
    model: str = ""
    stop_type: str = "eos"
    stopping_word: str = ""
    truncated: bool = False
    has_new_line: bool = False
    tokens_cached: int = 0
    generation_settings: dict[str, Any] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    timings: Timings
    penstock_timeline: TimelineField = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """What an answer repeats of its request. tokens: of its prompt.  settings, prompt: as
    LlamaAnswer has them."""

    tokens: int
    settings: dict[str, Any] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET


@dataclass(slots=True, kw_only=True)
class LlamaChoice:
    """One answer as far as it has come. shown: False for an answer of no tokens (n_predict 0)."""

    prompted: PromptFacts
    shown: bool
    tokens: int = 0
    has_new_line: bool = False
    stop_type: str = "eos"
    stopping_word: str = ""

    def take(self, text: str, tokens: int) -> str:
        """What it gains, to be shown."""
        if not self.shown:
            return ""
        self.tokens += tokens
        self.has_new_line = self.has_new_line or "\n" in text
        return text

    def finish(self, finish_reason: str | None, stop_reason: int | str | None) -> None:
        """Notes why it ended. An empty stop string is a line's indentation."""
        if not self.shown or finish_reason != "stop" or stop_reason == "":
            self.stop_type = "limit"
        elif isinstance(stop_reason, str):
            self.stop_type, self.stopping_word = "word", stop_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What replies show. fields: response_fields.  tokens: return_tokens.  probabilities: whether
    n_probs is there.  truncated: as LlamaAnswer has it.  is_list: whether the reply is a list even
    of one answer."""

    fields: list[FieldPath] | None = None
    tokens: bool = False
    probabilities: bool = False
    truncated: bool = False
    is_list: bool = False


@dataclass(slots=True)
class LlamaFormat(WrittenAtOnce):
    """A ReplyFormat of the answers to one request."""

    head: ReplyHead
    tokenizer: Tokenizer
    answers: list[LlamaChoice]
    wishes: Shown
    shows_aborts = True
    _begun: int = field(default_factory=time.perf_counter_ns)
    _first: int | None = None
    """Time at which the first token came; None before."""
    _timeline: TimelineField = UNSET
    _ending: list[bytes] = field(default_factory=list)
    """What a stream ends with."""

    def begin(self, source: PromptLogprobsSource) -> None:
        """Does nothing: probabilities of the prompt aren't shown."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        """A stream begins with its first text."""

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        return self.wishes.probabilities and are_many(deltas)

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        self._first = self._first or time.perf_counter_ns()
        answer = self.answers[choice]
        text = answer.take(delta.text, len(delta.token_ids))
        if delta.finish_reason is not None:
            answer.finish(delta.finish_reason, delta.stop_reason)
        if not answer.shown or not (text or delta.token_ids):
            return
        piece = LlamaPiece(
            index=choice,
            content=text,
            tokens=delta.token_ids,
            tokens_predicted=answer.tokens,
            tokens_evaluated=answer.prompted.tokens,
        )
        if self.wishes.probabilities:
            piece.completion_probabilities = self._probabilities(delta.token_ids, delta.logprobs)
        append_event(out, piece)

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Adds nothing: usage comes with the last event."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        self._timeline = timeline

    async def ends(self, usage: UsageInfo) -> None:
        pace = Pace()
        for index in range(len(self.answers)):
            written = encoder.encode(self._shown(self._answer(index, "", usage)))
            self._ending.append(b"data: %b\n\n" % written)
            await pace.rest()

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        """All answers, which `ends` has written."""

    def spliced(self, out: bytearray) -> list[bytes]:
        ending, self._ending = self._ending, []
        return [bytes(out), *ending]

    def failed(self, error: HTTPError) -> bytes:
        return failed_stream(error)

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        self._timeline = timeline
        self._first = min(choice.begun or 0 for choice in choices) or None
        tokens = sum(len(choice.token_ids) for choice in choices)
        written, splices = JsonList(), Splices()
        async with paced(tokens if self.wishes.probabilities else 0) as pace:
            for index, (answer, choice) in enumerate(zip(self.answers, choices, strict=True)):
                text = answer.take("".join(choice.texts), len(choice.token_ids))
                answer.finish(choice.finish_reason, choice.stop_reason)
                reply = self._answer(index, text, usage)
                if self.wishes.tokens and answer.shown:
                    reply.tokens = choice.token_ids
                if self.wishes.probabilities and answer.shown:
                    probabilities = await self._all_probabilities(choice, pace)
                    reply.completion_probabilities = splices.put(probabilities.pieces())
                one = splices.spliced(encoder.encode(self._shown(reply)))
                if len(self.answers) == 1 and not self.wishes.is_list:
                    return one
                written.add_written(one)
                await pace.rest()
        return written.pieces()

    async def _all_probabilities(self, choice: ChoiceOutput, pace: Pace) -> JsonList:
        made = JsonList()
        for begin, end in steps(len(choice.token_ids)):
            ids, found = choice.token_ids[begin:end], choice.logprobs[begin:end]
            made.add(self._probabilities(ids, found))
            await pace.rest()
        return made

    def _answer(self, index: int, text: str, usage: UsageInfo) -> LlamaAnswer:
        answer, of_one = self.answers[index], usage.prompt_tokens
        prompted = answer.prompted
        # Of several prompts only the sum is known.
        cached = usage.prompt_tokens_details.cached_tokens if prompted.tokens == of_one else 0
        return LlamaAnswer(
            index=index,
            content=text,
            tokens_predicted=answer.tokens,
            tokens_evaluated=prompted.tokens,
            model=self.head.model,
            stop_type=answer.stop_type,
            stopping_word=answer.stopping_word,
            truncated=self.wishes.truncated,
            has_new_line=answer.has_new_line,
            tokens_cached=cached,
            generation_settings=prompted.settings,
            prompt=prompted.prompt,
            timings=self._timings(prompted.tokens - cached, cached, answer.tokens),
            penstock_timeline=self._timeline,
        )

    def _timings(self, computed: int, cached: int, predicted: int) -> Timings:
        now = time.perf_counter_ns()
        first = self._first or now
        prompt_ms, predicted_ms = (first - self._begun) / 1e6, (now - first) / 1e6
        return Timings(
            cached,
            computed,
            prompt_ms,
            prompt_ms / max(computed, 1),
            1e3 * computed / max(prompt_ms, 1e-3),
            predicted,
            predicted_ms,
            predicted_ms / max(predicted, 1),
            1e3 * predicted / max(predicted_ms, 1e-3),
        )

    def _probabilities(
        self, ids: list[int], logprobs: list[TokenLogprobs] | None
    ) -> list[TokenProbabilities]:
        found = []
        for token, at in zip(ids, logprobs or (), strict=False):
            own = self._likely(token, at.logprob)
            top = [
                self._likely(other, logprob)
                for other, logprob in zip(at.top_ids, at.top_logprobs, strict=False)
            ]
            found.append(TokenProbabilities(own.id, own.token, own.bytes, own.logprob, top))
        return found

    def _likely(self, token: int, logprob: float) -> LikelyToken:
        raw = self.tokenizer.token_bytes(token)
        return LikelyToken(token, token_text(raw), list(raw), max(logprob, LOWEST))

    def _shown(self, reply: LlamaAnswer) -> Any:
        """The fields that the client wants to see; the reply itself if it named none."""
        if not self.wishes.fields:
            return reply
        shown = {}
        for path in self.wishes.fields:
            found: Any = reply
            for part in path:
                found = _part(found, part)
                if found is UNSET:
                    break
            else:
                shown["/".join(path)] = found
        return shown


def _part(whole: Any, name: str) -> Any:
    """What an object of a reply has under that name; UNSET where it has nothing, and of what is no
    object."""
    if isinstance(whole, msgspec.Struct):
        return getattr(whole, name, UNSET) if name in whole.__struct_fields__ else UNSET
    return whole.get(name, UNSET) if isinstance(whole, dict) else UNSET


class LlamaSpec(ReplySpec, frozen=True):
    """n: answers to each prompt.  shown: see LlamaChoice.  wishes: see LlamaFormat."""

    prompts: list[PromptFacts]
    n: int
    shown: bool
    wishes: Shown

    def format(self, head: ReplyHead, engine: EngineInfo) -> LlamaFormat:
        answers = [
            LlamaChoice(prompted=prompted, shown=self.shown)
            for prompted in self.prompts
            for _ in range(self.n)
        ]
        return LlamaFormat(head, engine.text.tokenizer, answers, self.wishes)
