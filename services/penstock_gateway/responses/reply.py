"""A response, whole and as the events that make it up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from penstock.client.deltas import SequenceDelta
from penstock.text.detokenizer import make_detokenizer
from penstock_gateway.chat.answer_parts import AnswerParts
from penstock_gateway.chat.parsing_spec import ParsingSpec, parsing_of
from penstock_gateway.generate.chunked_reply import are_many, paced, parts_of
from penstock_gateway.generate.logprobs import ChatLogprob, chat_logprobs
from penstock_gateway.generate.reply import (
    PromptLogprobsSource,
    ReceiptField,
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    WrittenAtOnce,
    encoder,
)
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_gateway.generate.timeline import RequestTimeline
from penstock_gateway.responses.items import OutputItem
from penstock_gateway.responses.output import Events, EventWriter, NoEvents, ThoughtsShown
from penstock_gateway.responses.output_kinds import output_items
from penstock_gateway.responses.request import (
    ConversationParam,
    ReasoningOptions,
    ResponsesRequest,
)
from penstock_gateway.responses.tool_kinds import FUNCTION, NamedTool
from penstock_gateway.responses.tools import CalledAs

if TYPE_CHECKING:
    from penstock.protocol.common import TokenLogprobs
    from penstock.request.sampling_params import SamplingParams
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.chat.parsed_choice import Parsing
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.http.errors import HTTPError
    from penstock_gateway.models.backend import EngineInfo
    from penstock_gateway.responses.tools import ResponseTools


ID_PREFIX = "resp_"


class InputDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """reasoning_tokens: as in CompletionTokensDetails."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of the whole request."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """code: one of OpenAI's: server_error, rate_limit_exceeded or invalid_prompt."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class Response(msgspec.Struct, tag_field="object", tag="response", kw_only=True):
    """status: in_progress, completed, incomplete or failed.  completed_at: Unix time, seconds; only
    where it is completed.  What the request said comes back."""

    id: str
    created_at: int
    completed_at: int | None = None
    status: str
    model: str
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: ResponseError | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int = 0
    max_tool_calls: int | None = None
    text: dict[str, Any]
    metadata: dict[str, Any]
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: bool = False
    background: bool = False
    previous_response_id: str | None = None
    conversation: ConversationParam | UnsetType = UNSET
    parallel_tool_calls: bool = True
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[Any] = []
    truncation: str = "disabled"
    reasoning: ReasoningOptions | None = None
    service_tier: str = "default"
    penstock_timeline: TimelineField = UNSET
    penstock_receipt: ReceiptField = UNSET


class ResponsesFormat(WrittenAtOnce):
    """Writes the reply to one request. parsing: how the text is read; None: all of it is
    content."""

    shows_aborts = False

    def __init__(
        self,
        head: ReplyHead,
        tokenizer: Tokenizer,
        spec: ResponsesSpec,
        parsing: Parsing | None,
    ) -> None:
        self.request = request = spec.request
        self.head = head
        self.receipt: ReceiptField = UNSET
        self._tokenizer = tokenizer
        self._logprobs = spec.logprobs
        self._skips_special_tokens = spec.skips_special_tokens
        self._base = head.id.removeprefix(ID_PREFIX)
        self._draw = head.draw
        self._parsing = parsing
        self._called = spec.called_tool
        self._shown = ThoughtsShown.asked_for(request)
        self._events = EventWriter()
        self._items: AnswerParts[OutputItem] | None = None
        self._response = Response(
            id=head.id,
            created_at=head.created,
            status="in_progress",
            model=head.model,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            presence_penalty=spec.presence_penalty,
            frequency_penalty=spec.frequency_penalty,
            top_logprobs=request.top_logprobs or 0,
            max_tool_calls=request.max_tool_calls,
            text=_text_options(request),
            metadata=request.metadata or {},
            user=request.user,
            safety_identifier=request.safety_identifier,
            prompt_cache_key=request.prompt_cache_key,
            store=spec.stored,
            previous_response_id=request.previous_response_id,
            conversation=_conversation(request),
            parallel_tool_calls=request.parallel_tool_calls is not False,
            tool_choice=_tool_choice(request),
            tools=spec.tools,
            truncation=request.truncation or "disabled",
            reasoning=request.reasoning,
        )

    @property
    def response(self) -> Response:
        """The response as far as it has come."""
        return self._response

    @property
    def numbered(self) -> int:
        return self._events.number

    def renumber(self, number: int) -> None:
        self._events.number = number

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        return (self._logprobs or self._parsing is not None) and are_many(deltas)

    def begin(self, source: PromptLogprobsSource) -> None:
        """Does nothing: this API shows nothing of the prompt."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        self._events.out = out
        self._events.send("created", response=self._response)
        self._events.send("in_progress", response=self._response)
        self._items = self._output_items(self._events)

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        if self._items is None:
            return
        self._events.out = out
        logprobs = self._logprobs_of(delta.token_ids, delta.logprobs)
        self._items.push(delta.text, delta.token_ids, logprobs)
        if delta.finish_reason is not None:
            self._finish(self._items, delta.finish_reason)

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Adds nothing: usage comes with the last event."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        self._response.penstock_timeline = timeline

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        """The event that holds the whole response."""
        thoughts = 0 if self._items is None else self._items.reasoning_tokens
        self._response.usage = _usage(usage, thoughts)
        self._response.penstock_receipt = self.receipt
        self._events.out = out
        self._events.send(self._response.status, response=self._response)

    def end_not_kept(self) -> None:
        """Replaces what `end` wrote, which hasn't gone out yet: the response isn't stored."""
        self._response.store = False
        self._events.take_back()
        self._events.send(self._response.status, response=self._response)

    def without_end(self) -> list[bytes]:
        """What came before the event that `end` wrote, which doesn't go out."""
        self._events.take_back()
        return self.spliced(self._events.out)

    def spliced(self, out: bytearray) -> list[bytes]:
        return self._events.splices.spliced(out)

    def encoded(self) -> list[bytes]:
        """The response as JSON, as far as it has come."""
        return self._events.splices.spliced(encoder.encode(self._response))

    def failed(self, error: HTTPError) -> bytes:
        """OpenAI's event `error`, and the response as far as it came, which isn't kept."""
        response = self._response
        response.store = False
        response.status = "failed"
        response.error = ResponseError(_error_code(error), error.body.message)
        self._events.out = bytearray()
        self._events.fail(error.body)
        self._events.send("failed", response=response)
        return b"".join(self.spliced(self._events.out))

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        [choice] = choices
        items = self._output_items(NoEvents(self._events.splices))
        delta = SequenceDelta(
            index=0,
            text="".join(choice.texts),
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
        )
        async with paced(len(choice.token_ids) if self._logprobs else 0) as pace:
            for part in parts_of(delta):
                logprobs = self._logprobs_of(part.token_ids, part.logprobs)
                items.push(part.text, part.token_ids, logprobs)
                await pace.rest()
        self._finish(items, choice.finish_reason)
        self._response.usage = _usage(usage, items.reasoning_tokens)
        self._response.penstock_timeline = timeline
        self._response.penstock_receipt = self.receipt
        return self.encoded()

    def _finish(self, items: AnswerParts[OutputItem], reason: str | None) -> None:
        response = self._response
        response.status = "completed" if reason == "stop" else "incomplete"
        if reason == "stop":
            response.completed_at = int(time.time())
        else:
            # OpenAI has no reason of its own for an answer that repeats itself.
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        response.output = items.finish(response.status)

    def _output_items(self, events: Events) -> AnswerParts[OutputItem]:
        detokenizer = None
        if self._logprobs and self._parsing is not None:
            detokenizer = make_detokenizer(self._tokenizer, self._skips_special_tokens)
        return output_items(
            events, self._base, self._called, self._shown, self._parsing, detokenizer, self._draw
        )

    def _logprobs_of(
        self, ids: list[int], logprobs: list[TokenLogprobs] | None
    ) -> list[ChatLogprob]:
        if not self._logprobs or not ids:
            return []
        # Each is written once, and shown up to five times.
        shown = chat_logprobs(self._tokenizer, ids, logprobs).content
        return [cast("ChatLogprob", msgspec.Raw(encoder.encode(each))) for each in shown]


def _error_code(error: HTTPError) -> str:
    if error.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"


def _tool_choice(request: ResponsesRequest) -> str | dict[str, Any]:
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.type != "allowed_tools":
        return {"type": choice.type, "name": choice.name or ""}
    tools = [{"type": tool.type, "name": tool.name} for tool in choice.tools or ()]
    return {"type": choice.type, "mode": choice.mode or "auto", "tools": tools}


def _conversation(request: ResponsesRequest) -> ConversationParam | UnsetType:
    named = request.conversation
    if named is None:
        return UNSET
    return ConversationParam(id=named) if isinstance(named, str) else named


def _text_options(request: ResponsesRequest) -> dict[str, Any]:
    """The text options as they were given, with the default filled in."""
    given = request.text.format if request.text is not None else None
    if given is None:
        return {"format": {"type": "text"}}
    if given.type != "json_schema":
        return {"format": {"type": given.type}}
    shown = {name: getattr(given, name) for name in given.__struct_fields__}
    return {"format": shown | {"strict": given.strict is True}}


def _usage(usage: UsageInfo, reasoning_tokens: int) -> ResponseUsage:
    return ResponseUsage(
        usage.prompt_tokens,
        InputDetails(usage.prompt_tokens_details.cached_tokens),
        usage.completion_tokens,
        OutputDetails(reasoning_tokens),
        usage.total_tokens,
    )


class ResponsesSpec(ReplySpec, frozen=True, kw_only=True):
    """What a response shows of its request, and how it is written."""

    request: ResponsesRequest
    parsing: ParsingSpec | None
    """How the text is read; None: all of it is content."""
    stored: bool
    """It is kept."""
    tools: list[Any]
    """The tools that count, as the response shows them."""
    called: dict[str, CalledAs]
    """The tools that functions' names stand for, where they aren't functions of that name."""
    logprobs: bool
    skips_special_tokens: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float

    @classmethod
    def of(
        cls,
        request: ResponsesRequest,
        params: SamplingParams,
        tools: ResponseTools,
        parsing: ParsingSpec | None,
        *,
        stored: bool,
    ) -> ResponsesSpec:
        return cls(
            request=request,
            parsing=parsing,
            stored=stored,
            tools=tools.shown,
            called=tools.called,
            logprobs=params.logprobs is not None,
            skips_special_tokens=params.skip_special_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
        )

    def format(self, head: ReplyHead, engine: EngineInfo) -> ResponsesFormat:
        parsing = parsing_of(self.parsing, engine)
        return ResponsesFormat(head, engine.text.tokenizer, self, parsing)

    def called_tool(self, function: str) -> NamedTool:
        """The tool that a function's name stands for."""
        found = self.called.get(function)
        return NamedTool(FUNCTION, function) if found is None else found.tool
