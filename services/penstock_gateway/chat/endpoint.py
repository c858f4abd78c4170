"""POST /v1/chat/completions."""

from __future__ import annotations

import re
from functools import partial

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.sampling_params import SamplingParams
from penstock.request.structured_outputs import PARAM
from penstock_gateway.chat.output_parsing import read_as
from penstock_gateway.chat.prompt import ChatMedia, ChatPrompt, chat_prompt, template_of
from penstock_gateway.chat.reply import ChatCompletion, ChatFormat
from penstock_gateway.chat.request import ChatRequest, check
from penstock_gateway.chat.tool_choice import tool_use
from penstock_gateway.chat.tools import OPENAI_TOOLS, Tool, ToolLimits, ToolUse
from penstock_gateway.generate.beam_search import search_of
from penstock_gateway.generate.echo_options import EchoOptions
from penstock_gateway.generate.endpoint import Blame, GenerateEndpoint, Job
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.prediction import predicted_ids
from penstock_gateway.request.sampling import (
    room_for_output,
    sampling_params,
    sequences_of,
    truncated,
)
from penstock_gateway.request.structured_outputs import blame, structure_field
from penstock_gateway.service import Service

OPERATION = posting(
    "/v1/chat/completions",
    "Answer a conversation",
    ChatRequest,
    ChatCompletion,
    streams=True,
    traced_as="chat",
)


class ChatCompletions(GenerateEndpoint[ChatRequest]):
    """POST /v1/chat/completions: one conversation in, n answers out."""

    request_type = ChatRequest
    id_prefix = "chatcmpl-"

    def check(self, request: ChatRequest) -> None:
        check(request)
        tools_of(request)

    async def prepare(
        self, request: ChatRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> Job:
        config = engine.config
        use = tools_of(request, auto_allowed=config.enable_auto_tool_choice)
        with_media = ChatMedia(self._service.media, lease, request.mm_processor_kwargs)
        prompt = await prompt_of(request, engine, use, with_media)
        prompt_token_ids, params = _fitted(request, engine, prompt.prompt_token_ids)
        params, parsing = read_as(
            config,
            template_of(engine).source,
            use,
            prompt,
            engine.text.tokenizer,
            params,
            include_reasoning=request.include_reasoning is not False,
            largest_grammar=engine.welcome.limits.max_grammar_bytes,
            family=engine.welcome.family,
        )
        echo_options = EchoOptions.of(request, logprobs=bool(request.logprobs))
        echo = _last_words(request) if request.echo else ""
        reply = ChatFormat(
            head, engine.text.tokenizer, echo_options, prompt_token_ids, echo, parsing
        )
        return Job(
            [prompt_token_ids],
            [params],
            reply,
            blame_of(request, use),
            search_of(request),
            prompt.media,
            await predicted_ids(request.prediction, engine),
        )


def _fitted(
    request: ChatRequest, engine: EngineInfo, prompt_token_ids: list[int]
) -> tuple[list[int], SamplingParams]:
    """The prompt, cut if that was asked for, and the parameters. Raises InvalidRequest."""
    limit = engine.welcome.limits.max_model_len
    two = request.max_completion_tokens is not None
    wanted = request.max_completion_tokens if two else request.max_tokens
    prompt_token_ids = truncated(prompt_token_ids, request, wanted, limit)
    sequences, many = sequences_of(request)
    max_tokens = room_for_output(
        len(prompt_token_ids),
        wanted,
        engine.welcome.generation.max_new_tokens,
        engine.welcome.limits,
        field="max_completion_tokens" if two else "max_tokens",
        source="messages",
        sequences=sequences,
        many=many,
        oversized=engine.config.oversized_max_tokens,
    )
    params = sampling_params(
        request,
        engine.welcome,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
    )
    return prompt_token_ids, params


def _last_words(request: ChatRequest) -> str:
    """What an echo begins with: the last message, if it is the assistant's."""
    last = request.messages[-1]
    return last.content if last.role == "assistant" and isinstance(last.content, str) else ""


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(ChatCompletions(service))]


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
    request: ChatRequest, engine: EngineInfo, use: ToolUse, with_media: ChatMedia
) -> ChatPrompt:
    """The conversation through the model's chat template. Raises InvalidRequest."""
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    if use.tools:
        variables["tools"] = use.for_template()
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
    where = f"tools[{index}].function.parameters"
    message = error.message.removeprefix(f"{PARAM}: ")
    message = _PLACE.sub("", message).replace("at : ", "")
    return InvalidRequest(f"{where}, the schema of {name}: {message}", param=where, code=error.code)


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
