"""POST /v1/chat/completions: its body, and what is done with it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec

from penstock.errors import Field, InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.sampling_params import MAX_LOGPROBS, SamplingParams
from penstock.request.structured_outputs import PARAM
from penstock_gateway.chat.custom_tools import CUSTOM
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.output_parsing import read_as, reading_of, with_budget
from penstock_gateway.chat.parsing_spec import AnswerModel
from penstock_gateway.chat.prompt import (
    ChatMedia,
    ChatPrompt,
    chat_prompt,
    check_variables,
    refuse_template,
)
from penstock_gateway.chat.reply import ChatCompletion, ChatSpec
from penstock_gateway.chat.shown_tools import note_unshown
from penstock_gateway.chat.thinking import (
    ReasoningField,
    ThinkingSwitch,
    check_thinking,
    one_budget,
    shows_thoughts,
    thinking_variables,
)
from penstock_gateway.chat.tool_choice import ToolChoice
from penstock_gateway.chat.tools import OPENAI_TOOLS, Tool, ToolLimits, ToolUse, tool_use
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import Blame, PreparedRequest
from penstock_gateway.generate.reply import (
    EchoOptions,
    ReplyHead,
    check_listed,
    check_prompt_logprobs,
)
from penstock_gateway.generate.search import check_search, search_of
from penstock_gateway.http.operations import SIGNED_HEADERS, OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.answer_form import blame, structure_field
from penstock_gateway.request.endpoint import Headers
from penstock_gateway.request.fields import (
    COMMON,
    Flag,
    GenerateFields,
    Object,
    Text,
    UnsupportedField,
    Whole,
    check_unsupported,
    check_verbosity,
)
from penstock_gateway.request.sampling import fitted
from penstock_gateway.request.tokenising import predicted_ids
from penstock_gateway.service import Service


class ChatRequest(GenerateFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields besides those of GenerateFields, in the same three groups."""

    messages: list[Message]
    max_completion_tokens: Whole = None
    logprobs: Flag = None
    top_logprobs: Whole = None
    add_generation_prompt: Flag = None
    chat_template_kwargs: Object = None

    tools: list[Tool] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: Flag = None
    tool_stream: Flag = None
    """False: of a stream, each call comes in one piece, as Mistral's clients need it. Z.AI's word,
    whose default is the other one."""
    include_reasoning: Flag = None
    reasoning_effort: Text = None
    """A variable for the chat template, as chat_template_kwargs are."""
    reasoning: ReasoningField | None = None
    thinking: ThinkingSwitch | bool | None = None
    enable_thinking: Flag = None
    thinking_budget: Whole = None
    """thinking_token_budget, as Alibaba's and SiliconFlow's clients write it."""
    thinking_budget_tokens: Whole = None
    """llama-server's name for it."""
    continue_final_message: Flag = None
    add_special_tokens: Flag = None
    documents: list[dict[str, Any]] | None = None

    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    verbosity: Text = None
    web_search_options: Any = None
    chat_template: Text = None
    return_prompt_text: Flag = None
    separate_reasoning: Flag = None
    stream_reasoning: Flag = None
    reasoning_format: Text = None
    safe_prompt: Flag = None
    """Mistral's: a system prompt of theirs in front."""

    def __post_init__(self) -> None:
        super().__post_init__()
        budget = one_budget(self)
        if budget is not None:
            msgspec.structs.force_setattr(self, "thinking_token_budget", budget)


RULES = (
    *COMMON,
    UnsupportedField("modalities", (["text"],)),
    UnsupportedField("audio"),
    UnsupportedField("web_search_options"),
    UnsupportedField("return_prompt_text", (False,)),
    UnsupportedField("separate_reasoning", (True,)),
    UnsupportedField("safe_prompt", (False,)),
    UnsupportedField("stream_reasoning", (True,)),
    UnsupportedField("reasoning_format", ("auto", "deepseek")),
)
_RETIRED = (("functions", "tools"), ("function_call", "tool_choice"))


def check_chat(request: ChatRequest) -> None:
    """Checks what needs no model. Raises InvalidRequest."""
    check_unsupported(request, RULES)
    check_prompt_logprobs(request)
    if request.searches:
        check_search(request)
    num_logprobs(request)
    check_listed(request, logprobs=bool(request.logprobs))
    one, other = request.max_completion_tokens, request.max_tokens
    if one is not None and other is not None and one != other:
        raise InvalidRequest(
            f"max_tokens is {other} and ",
            Field("max_completion_tokens"),
            f" is {one}; they mean the same: set only one of them",
            param="max_tokens",
        )
    if request.chat_template_kwargs:
        check_variables(request.chat_template_kwargs)
    if request.chat_template is not None:
        refuse_template(request.chat_template)
    for field, instead in _RETIRED:
        if getattr(request, field) not in (None, [], "none"):
            raise InvalidRequest(
                f"{field} is the deprecated form of {instead}, and is not supported; send "
                f"{instead}",
                param=field,
                code="unsupported_value",
            )
    check_verbosity("verbosity", request.verbosity)
    check_thinking(request)


class LogprobFields(Protocol):
    """What a chat asks for."""

    @property
    def logprobs(self) -> bool | None: ...

    @property
    def top_logprobs(self) -> int | None: ...


def num_logprobs(asked: LogprobFields) -> int | None:
    """How many of the likeliest tokens are shown in the place of each; None: no log-probabilities
    are. Raises InvalidRequest."""
    top = asked.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be a whole number in [0, {MAX_LOGPROBS}], not {top}",
            param="top_logprobs",
        )
    if top and not asked.logprobs:
        raise InvalidRequest(
            f"top_logprobs is {top}, which needs ",
            Field("logprobs"),
            ": true",
            param="top_logprobs",
        )
    return (top or 0) if asked.logprobs else None


_WHOLE_CALLS = re.compile(rb"mistral-client-|ai-sdk/mistral/")
"""Stands in the User-Agent of Mistral's SDKs and of Vercel's AI SDK for Mistral. Both read each
piece of a call as a whole one, and lose all of it where the name is missing."""


def _reads_whole_calls(headers: Headers) -> bool:
    return any(name == b"user-agent" and _WHOLE_CALLS.search(value) for name, value in headers)


OPERATION = posting(
    "/v1/chat/completions",
    "Answer a conversation",
    ChatRequest,
    ChatCompletion,
    streams=True,
    headers=SIGNED_HEADERS,
    traced_as="chat",
)


class ChatCompletions(GenerateEndpoint[ChatRequest]):
    """POST /v1/chat/completions: one conversation in, n answers out."""

    request_type = ChatRequest
    reply_spec = ChatSpec
    gives_receipts = True
    id_prefix = "chatcmpl-"
    replayable = True

    def understood(self, body: bytes, headers: Headers) -> ChatRequest:
        request = super().understood(body, headers)
        if request.tool_stream is None and request.tools and _reads_whole_calls(headers):
            return msgspec.structs.replace(request, tool_stream=False)
        return request

    def check(self, request: ChatRequest) -> None:
        check_chat(request)
        if request.tools or request.tool_choice is not None:
            tools_of(request)

    async def prepare(
        self, request: ChatRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        config = engine.config
        use = tools_of(request, auto_allowed=config.enable_auto_tool_choice)
        service, changes = self._service, request.mm_processor_kwargs
        with_media = ChatMedia(service.media, lease, changes, service.store)
        prompt = await prompt_of(request, engine, use, with_media, head.created)
        prompt_token_ids, params = _fitted(request, engine, prompt.prompt_token_ids)
        params, parsing = read_as(
            AnswerModel.of(engine),
            use,
            prompt,
            with_budget(params, request, engine),
            include_reasoning=shows_thoughts(request),
            largest_grammar=engine.welcome.limits.max_grammar_bytes,
        )
        if parsing is not None and request.tool_stream is False:
            parsing = msgspec.structs.replace(parsing, whole_calls=True)
        echo_options = EchoOptions.of(request, logprobs=bool(request.logprobs))
        reply = ChatSpec(
            echo_options,
            prompt_token_ids if echo_options.prompt else [],
            _last_words(request) if request.echo else "",
            parsing,
        )
        return PreparedRequest(
            [prompt_token_ids],
            [params],
            reply,
            blame_of(request, use),
            search_of(request) if request.searches else None,
            prompt.media,
            await predicted_ids(request.prediction, engine) if request.prediction else [],
            reading_of(engine),
        )


def _fitted(
    request: ChatRequest, engine: EngineInfo, prompt_token_ids: list[int]
) -> tuple[list[int], SamplingParams]:
    """The prompt, cut if that was asked for, and the parameters. Raises InvalidRequest."""
    two = request.max_completion_tokens is not None
    return fitted(
        request,
        engine,
        prompt_token_ids,
        request.max_completion_tokens if two else request.max_tokens,
        field="max_completion_tokens" if two else "max_tokens",
        source="messages",
        logprobs=num_logprobs(request),
    )


def _last_words(request: ChatRequest) -> str:
    """What an echo begins with: the last message, if it is the assistant's."""
    last = request.messages[-1]
    return last.content if last.role == "assistant" and isinstance(last.content, str) else ""


def routes(service: Service) -> list[OperationRoute]:
    """The route, also without /v1, as llama-server's clients have it."""
    endpoint = ChatCompletions(service)
    short = replace(OPERATION, path=OPERATION.path.removeprefix("/v1"))
    return [OPERATION.route(endpoint), short.route(endpoint)]


def tools_of(
    request: ChatRequest, *, auto_allowed: bool = True, limits: ToolLimits = OPENAI_TOOLS
) -> ToolUse:
    """Raises InvalidRequest."""
    return tool_use(
        request.tools,
        request.tool_choice,
        parallel=request.parallel_tool_calls,
        auto_allowed=auto_allowed,
        limits=limits,
    )


async def prompt_of(
    request: ChatRequest,
    engine: EngineInfo,
    use: ToolUse,
    with_media: ChatMedia,
    now: int | None = None,
) -> ChatPrompt:
    """The conversation through the model's chat template. now: see chat_prompt. Raises
    InvalidRequest."""
    variables = {**thinking_variables(request), **(request.chat_template_kwargs or {})}
    if use.tools:
        variables["tools"] = use.for_template()
        await note_unshown(engine)
    if request.documents:
        variables["documents"] = request.documents
    return await chat_prompt(
        engine,
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=request.add_special_tokens,
        variables=variables,
        with_media=with_media,
        now=now,
    )


def blame_of(request: ChatRequest, use: ToolUse) -> Blame:
    """The Blame of a request: names the field that says what its answer must look like, or the
    tools."""
    if use.mode in ("named", "required"):
        return partial(blame_tool, use=use, given=request.tools or [])
    field = structure_field(request)
    if use.mode == "free":  # There may be strict tools.
        given = request.tools or []
        return partial(blame_tool, use=use, given=given, field=field or "tools")
    return partial(blame, field=field)


_TAG = r"/<tool>(?:/(?P<tool>\d+)|: at /anyOf/(?P<either>\d+)(?:/properties/\w+)?)?"
"""Pattern for the place, in a message, of a tool whose calls are in the model's own format, or,
where these have no marks, of an object that is one of several: there is one for each tool, then for
each with another key, and so on."""
_PLACE = re.compile(rf"{_TAG}|#?/items/anyOf/(?P<item>\d+)(?:/properties/parameters)?")
"""Pattern for that place, or for a tool's where a call that must be one of several is JSON; see
ToolUse.grammar."""


def blame_tool(
    error: InvalidRequest, use: ToolUse, given: list[Tool], field: str | None = "tool_choice"
) -> InvalidRequest:
    """The error, which names the tool's schema, or the field that asks for the answer's form, where
    it is about them. given: the request's tools, of which `use` may have some only. field: what
    else the answer's form is asked for by."""
    if error.param != PARAM:
        return error
    name = _name(error.message, use)
    if name is None:
        in_tools = use.mode == "free" and re.search(_TAG, error.message) is not None
        return blame(error, "tools" if in_tools else field)
    index = next(at for at, tool in enumerate(given) if tool.function.name == name)
    custom = given[index].type == CUSTOM
    where = f"tools[{index}].{'custom.format' if custom else 'function.parameters'}"
    message = error.message.removeprefix(f"{PARAM}: ")
    message = _PLACE.sub("", message).replace("at : ", "")
    what = "grammar" if custom else "schema"
    return InvalidRequest(f"{where}, the {what} of {name}: {message}", param=where, code=error.code)


def _name(message: str, use: ToolUse) -> str | None:
    """Name of the tool that the message is about; None: it doesn't say which."""
    if use.mode == "named":
        return use.name
    forced = use.mode == "required"
    place = (_PLACE if forced else re.compile(_TAG)).search(message)
    found = {} if place is None else place.groupdict()
    if found.get("either"):
        return use.names[int(found["either"]) % len(use.names)]
    index = int(found.get("tool") or found.get("item") or -1)
    if 0 <= index < len(use.tools):
        return use.names[index]
    return use.names[0] if forced and len(use.tools) == 1 else None
