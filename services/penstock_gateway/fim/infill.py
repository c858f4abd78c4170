"""POST /infill, as llama.cpp's editor plugins ask it: the text around the cursor, and pieces of
other files, in; what belongs between out, in llama.cpp's form."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from penstock.errors import InvalidRequest
from penstock.media.desk import MediaLease
from penstock.text.fim import fim_tokens
from penstock_gateway.fim.endpoint import FIMRequest
from penstock_gateway.fim.prompt import OtherFile, fim_prompt, with_files
from penstock_gateway.generate.endpoint import GenerateEndpoint, Job
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
from penstock_gateway.http.events import failed_stream
from penstock_gateway.http.operations import GENERATING_HEADERS, OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.fields import Flag, Number, RequestFields, Text, Whole
from penstock_gateway.request.sampling import room_for_output, sampling_params
from penstock_gateway.request.tokenising import encode
from penstock_gateway.service import Service

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.generate.timeline import RequestTimeline
    from penstock_gateway.http.errors import HTTPError

MAX_FILES = 256
"""Entries of input_extra."""
SEVERAL_TEMPERATURE = 0.8
"""Temperature where several answers are asked for: llama.cpp's own default."""


class InfillRequest(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """input_prefix, prompt: what stands before the gap, up to the cursor's line and of it.
    input_suffix: what stands behind it.  input_extra: pieces of other files, the nearest last; the
    first are left out where the context has no room for all.
    n_predict: tokens of an answer; below 0, or absent: as many as there is room for; 0: the prompt
    is only computed, so that the next one is answered sooner.  n_cmpl: answers; more than one make
    the reply a list.  n_indent: an answer ends before a line that has fewer spaces or tabs in
    front.  temperature: 0 by default, 0.8 for several answers.  response_fields: what alone the
    reply has; `a/b` is the field b of a."""

    # --- these work
    input_prefix: Text = None
    input_suffix: Text = None
    input_extra: list[OtherFile] | None = None
    prompt: Text = None
    n_predict: Whole = None
    n_cmpl: Whole = None
    n_indent: Whole = None
    temperature: Number = None
    top_k: Whole = None
    top_p: Number = None
    min_p: Number = None
    seed: Whole = None
    stop: str | list[str] | None = None
    repeat_penalty: Number = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    ignore_eos: Flag = None
    response_fields: list[str] | None = None

    # --- without effect: an answer depends neither on time nor on what was kept
    t_max_prompt_ms: Number = None
    t_max_predict_ms: Number = None
    samplers: list[str] | str | None = None
    cache_prompt: Flag = None
    id_slot: Whole = None
    n_keep: Whole = None
    repeat_last_n: Whole = None
    timings_per_token: Flag = None
    return_progress: Flag = None


class Timings(msgspec.Struct):
    """Tokens, and milliseconds. cache_n: of the prompt, found in the KV cache.  prompt_n: computed.
    predicted_n: of the answer."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class InfillPiece(msgspec.Struct, kw_only=True):
    """A piece of an answer, in a stream. tokens: always empty.  tokens_predicted, tokens_evaluated:
    of the answer so far, and of the prompt."""

    index: int
    content: str
    tokens: list[int] = []
    id_slot: int = 0
    stop: bool = False
    tokens_predicted: int = 0
    tokens_evaluated: int = 0


class InfillReply(InfillPiece, kw_only=True):
    """An answer, or the end of one in a stream. stop_type: `eos`, `word` or `limit`.
    stopping_word: the stop string.  truncated: whether some of input_extra was left out.
    tokens_cached: of the prompt, found in the KV cache."""

    stop: bool = True
    model: str = ""
    stop_type: str = "eos"
    stopping_word: str = ""
    truncated: bool = False
    tokens_cached: int = 0
    timings: Timings
    penstock_timeline: TimelineField = UNSET


class FilledGap:
    """One answer as far as it has come."""

    def __init__(self, *, shown: bool) -> None:
        """shown: else nobody asked for it, and its only token is none."""
        self._shown = shown
        self.tokens = 0
        self.stop_type, self.stopping_word = "eos", ""

    def take(self, text: str, tokens: int) -> str:
        """What it gains, to be shown."""
        if not self._shown:
            return ""
        self.tokens += tokens
        return text

    def finish(self, finish_reason: str | None, stop_reason: int | str | None) -> None:
        """Notes why it ended. An empty stop string is a line's indentation."""
        if not self._shown or finish_reason != "stop" or stop_reason == "":
            self.stop_type = "limit"
        elif isinstance(stop_reason, str):
            self.stop_type, self.stopping_word = "word", stop_reason


class InfillFormat(WrittenAtOnce):
    """A ReplyFormat of the answers to one prompt."""

    shows_aborts = True

    def __init__(
        self,
        head: ReplyHead,
        answers: list[FilledGap],
        wanted: list[str] | None,
        *,
        truncated: bool,
    ) -> None:
        """wanted, truncated: response_fields, and what the reply says."""
        self._model = head.model
        self._answers = answers
        self._wanted = wanted
        self._truncated = truncated
        self._begun = time.perf_counter_ns()
        self._first: int | None = None
        """Time at which the first token came; None before."""
        self._timeline: TimelineField = UNSET

    def begin(self, source: PromptLogprobsSource) -> None:
        """Does nothing: the prompt isn't shown."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        """A stream begins with its first text."""

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        self._first = self._first or time.perf_counter_ns()
        answer = self._answers[choice]
        text = answer.take(delta.text, len(delta.token_ids))
        if delta.finish_reason is not None:
            answer.finish(delta.finish_reason, delta.stop_reason)
        if text:
            append_event(
                out, InfillPiece(index=choice, content=text, tokens_predicted=answer.tokens)
            )

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Adds nothing: usage comes with the last event."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        self._timeline = timeline

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        for index in range(len(self._answers)):
            out += b"data: "
            out += encoder.encode(self._shown(self._reply(index, "", usage)))
            out += b"\n\n"

    def failed(self, error: HTTPError) -> bytes:
        return failed_stream(error)

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        self._timeline = timeline
        self._first = min(choice.begun or 0 for choice in choices) or None
        replies = []
        for index, (answer, choice) in enumerate(zip(self._answers, choices, strict=True)):
            text = answer.take("".join(choice.texts), len(choice.token_ids))
            answer.finish(choice.finish_reason, choice.stop_reason)
            replies.append(self._shown(self._reply(index, text, usage)))
        return [encoder.encode(replies[0] if len(replies) == 1 else replies)]

    def _reply(self, index: int, text: str, usage: UsageInfo) -> InfillReply:
        answer, cached = self._answers[index], usage.prompt_tokens_details.cached_tokens
        return InfillReply(
            index=index,
            content=text,
            tokens_predicted=answer.tokens,
            tokens_evaluated=usage.prompt_tokens,
            model=self._model,
            stop_type=answer.stop_type,
            stopping_word=answer.stopping_word,
            truncated=self._truncated,
            tokens_cached=cached,
            timings=self._timings(usage.prompt_tokens - cached, cached, answer.tokens),
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

    def _shown(self, reply: InfillReply) -> Any:
        """The fields that the client wants to see; the reply itself if it didn't say which."""
        if self._wanted is None:
            return reply
        known, shown = msgspec.to_builtins(reply), {}
        for name in self._wanted:
            found: Any = known
            for part in name.split("/"):
                found = found.get(part, UNSET) if isinstance(found, dict) else UNSET
            if found is not UNSET:
                shown[name] = found
        return shown


OPERATION = posting(
    "/infill",
    "Fill in the middle (llama.cpp)",
    InfillRequest,
    InfillReply,
    streams=True,
    headers=GENERATING_HEADERS,
    traced_as="text_completion",
)


class Infill(GenerateEndpoint[InfillRequest]):
    request_type = InfillRequest
    id_prefix = "infill-"

    def check(self, request: InfillRequest) -> None:
        files = len(request.input_extra or ())
        if files > MAX_FILES:
            raise InvalidRequest(
                f"input_extra has {files} entries; at most {MAX_FILES} are allowed",
                param="input_extra",
            )

    async def prepare(
        self, request: InfillRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> Job:
        welcome, wanted = engine.welcome, request.n_predict
        only_computes = wanted == 0
        wanted = None if wanted is None or wanted < 0 else max(1, wanted)
        ids, asked = await _prompt(request, engine)
        files = request.input_extra or []
        room = welcome.limits.max_model_len - (wanted or 1)
        ids, kept = await with_files(ids, files, engine, room)
        if not ids:
            raise InvalidRequest(
                "input_prefix, prompt and input_suffix are empty; one of them must have at least"
                " one token",
                param="input_prefix",
            )
        try:
            most = room_for_output(
                len(ids),
                wanted,
                welcome.generation.max_new_tokens,
                welcome.limits,
                field="n_predict",
                source="input_prefix",
                sequences=asked.n or 1,
                many="n_cmpl",
                oversized="reduce",
            )
            params = sampling_params(asked, welcome, max_tokens=most, logprobs=None)
            indentation = max(0, request.n_indent or 0)
            params = msgspec.structs.replace(params, min_indentation=indentation)
        except InvalidRequest as error:
            raise _in_own_words(error) from None
        answers = [FilledGap(shown=not only_computes) for _ in range(params.n)]
        reply = InfillFormat(head, answers, request.response_fields, truncated=kept < len(files))
        return Job([ids], [params], reply, _in_own_words)


async def _prompt(request: InfillRequest, engine: EngineInfo) -> tuple[list[int], FIMRequest]:
    """What stands around the gap; a model that can't see what is behind it goes on with what is in
    front."""
    before, after = (request.input_prefix or "") + (request.prompt or ""), request.input_suffix
    tokenizer, asked = engine.text.tokenizer, _asked(request)
    if after or fim_tokens(tokenizer) is not None:
        return await fim_prompt(before, after or "", asked, engine, field="input_suffix")
    limit = engine.welcome.limits.max_model_len
    ids = await encode(lambda most: tokenizer.encode(before, most=most), len(before), limit)
    return ids, asked


def _asked(request: InfillRequest) -> FIMRequest:
    """The request in the words of other endpoints."""
    several = (request.n_cmpl or 1) > 1
    temperature = request.temperature
    if temperature is None:
        temperature = SEVERAL_TEMPERATURE if several else 0.0
    return FIMRequest(
        prompt="",
        n=request.n_cmpl,
        temperature=temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=request.seed,
        stop=request.stop,
        repetition_penalty=request.repeat_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        ignore_eos=request.ignore_eos,
    )


_RENAMED = {
    "repetition_penalty": "repeat_penalty",
    "n": "n_cmpl",
    "max_tokens": "n_predict",
    "min_indentation": "n_indent",
}


def _in_own_words(error: InvalidRequest) -> InvalidRequest:
    """The error, in llama.cpp's names."""
    own = _RENAMED.get(error.param or "")
    if own is None or error.param is None:
        return error
    message = re.sub(rf"\b{error.param}\b", own, error.message, count=1)
    return type(error)(message, param=own, code=error.code)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(Infill(service))]
