"""A response, whole and as the events that make it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from penstock_gateway.openai.logprobs import ChatLogprob, chat_logprobs
from penstock_gateway.openai.reply import ReplyHead, TimelineField, Usage, UsageField, encoder
from penstock_gateway.openai.shown import Source
from penstock_gateway.timeline import Timeline

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.protocol.common import TokenLogprobs
    from penstock.sampling_params import SamplingParams
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.openai.answer import Choice
    from penstock_gateway.openai.responses_request import ResponsesRequest


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """logprobs: empty unless they were asked for."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class InputDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of the whole request."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: str


class Response(msgspec.Struct, tag_field="object", tag="response", kw_only=True):
    """status: in_progress, completed or incomplete.  What the request said comes back."""

    id: str
    created_at: int
    status: str
    model: str
    output: list[OutputMessage] = []
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    top_logprobs: int = 0
    text: dict[str, Any]
    metadata: dict[str, Any]
    user: str | None = None
    store: bool = False
    background: bool = False
    previous_response_id: None = None
    parallel_tool_calls: bool = True
    tool_choice: str = "none"
    tools: list[Any] = []
    truncation: str = "disabled"
    reasoning: None = None
    service_tier: str = "default"
    penstock_timeline: TimelineField = UNSET


class ResponsesFormat:
    """Writes the reply to one request."""

    def __init__(
        self,
        head: ReplyHead,
        tokenizer: Tokenizer,
        request: ResponsesRequest,
        params: SamplingParams,
    ) -> None:
        self._tokenizer = tokenizer
        self._logprobs = params.logprobs is not None
        self._item = f"msg-{head.id.removeprefix('resp-')}"
        self._number = 0
        self._texts: list[str] = []
        self._content_logprobs: list[ChatLogprob] = []
        self._response = Response(
            id=head.id,
            created_at=head.created,
            status="in_progress",
            model=head.model,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_logprobs=request.top_logprobs or 0,
            text=_text_options(request),
            metadata=request.metadata or {},
            user=request.user,
        )

    def begin(self, source: Source) -> None:
        """Nothing of the prompt is shown."""

    def opening(self, out: bytearray, choice: int, usage: UsageField) -> None:
        self._event(out, "response.created", response=self._response)
        self._event(out, "response.in_progress", response=self._response)
        item = OutputMessage(self._item, "in_progress", [])
        self._event(out, "response.output_item.added", output_index=0, item=item)
        self._part_event(out, "response.content_part.added", part=OutputText(""))

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        logprobs = self._shown(delta.token_ids, delta.logprobs)
        if delta.text or logprobs:
            self._texts.append(delta.text)
            self._content_logprobs += logprobs
            self._part_event(out, "response.output_text.delta", delta=delta.text, logprobs=logprobs)
        if delta.finish_reason is not None:
            self._finish("".join(self._texts), self._content_logprobs, delta.finish_reason)
            [item] = self._response.output
            [part] = item.content
            self._part_event(
                out, "response.output_text.done", text=part.text, logprobs=part.logprobs
            )
            self._part_event(out, "response.content_part.done", part=part)
            self._event(out, "response.output_item.done", output_index=0, item=item)

    def usage(self, out: bytearray, usage: Usage) -> None:
        """It comes with the last event."""

    def timeline(self, out: bytearray, timeline: Timeline) -> None:
        self._response.penstock_timeline = timeline

    def end(self, out: bytearray, usage: Usage) -> None:
        """The event that holds the whole response."""
        self._response.usage = _usage(usage)
        self._event(out, f"response.{self._response.status}", response=self._response)

    def whole(self, choices: list[Choice], usage: Usage, timeline: TimelineField) -> bytes:
        [choice] = choices
        logprobs = self._shown(choice.token_ids, choice.logprobs)
        self._finish("".join(choice.texts), logprobs, choice.finish_reason)
        self._response.usage = _usage(usage)
        self._response.penstock_timeline = timeline
        return encoder.encode(self._response)

    def _finish(self, text: str, logprobs: list[ChatLogprob], reason: str | None) -> None:
        response = self._response
        response.status = "completed" if reason == "stop" else "incomplete"
        if reason != "stop":
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        content = [OutputText(text, logprobs=logprobs)]
        response.output = [OutputMessage(self._item, response.status, content)]

    def _shown(self, ids: list[int], logprobs: list[TokenLogprobs] | None) -> list[ChatLogprob]:
        if not self._logprobs or not ids:
            return []
        return chat_logprobs(self._tokenizer, ids, logprobs).content

    def _part_event(self, out: bytearray, kind: str, **fields: Any) -> None:
        self._event(out, kind, item_id=self._item, output_index=0, content_index=0, **fields)

    def _event(self, out: bytearray, kind: str, **fields: Any) -> None:
        """One server-sent event, under its own name."""
        out += f"event: {kind}\ndata: ".encode()
        event = {"type": kind, "sequence_number": self._number, **fields}
        encoder.encode_into(event, out, -1)
        out += b"\n\n"
        self._number += 1


def _text_options(request: ResponsesRequest) -> dict[str, Any]:
    """As they were given, with the default filled in."""
    given = request.text.format if request.text is not None else None
    if given is None:
        return {"format": {"type": "text"}}
    shown = {name: getattr(given, name) for name in given.__struct_fields__}
    return {"format": {name: value for name, value in shown.items() if value is not None}}


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        usage.prompt_tokens,
        InputDetails(usage.prompt_tokens_details.cached_tokens),
        usage.completion_tokens,
        OutputDetails(),
        usage.total_tokens,
    )
