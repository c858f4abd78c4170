"""POST /api/chat and /api/generate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.request_bounds import check_generates
from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.terms import Terms
from penstock_dialects.ollama.reply import (
    ChatLine,
    GenerateLine,
    OllamaSpec,
    Show,
    chat_line,
    generate_line,
    loaded,
)
from penstock_dialects.ollama.request import (
    CHAT_NAMES,
    ERRORS,
    GENERATE_NAMES,
    ChatMessage,
    OllamaChatRequest,
    OllamaDialect,
    OllamaFields,
    OllamaGenerateRequest,
    Options,
    check,
    encoded,
    gives_up,
)
from penstock_gateway.chat.endpoint import ChatRequest, blame_of, num_logprobs, tools_of
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.parsing_spec import ParsingSpec
from penstock_gateway.chat.prepared_chat import prepared_chat
from penstock_gateway.chat.shown_tools import shows_tools
from penstock_gateway.chat.tools import ANY_TOOLS
from penstock_gateway.fim.prompt import fim_prompt
from penstock_gateway.generate.endpoint import GenerateEndpoint, HTTPCall, left_out
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.generate.timeline import TimelineRecorder
from penstock_gateway.http.control import check_control
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.events import JSON_LINES, EventStream
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.keys.ring import current
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.endpoint import Headers
from penstock_gateway.request.sampling import room_for_output, sampling_params
from penstock_gateway.request.structure import JsonSchemaFormat, ResponseFormat
from penstock_gateway.request.tokenising import encode
from penstock_gateway.service import Service

CHAT = posting(
    "/api/chat",
    "Chat (Ollama)",
    OllamaChatRequest,
    ChatLine,
    streams=True,
    stream_type="application/x-ndjson",
    traced_as="chat",
    errors_as=ERRORS,
)
GENERATE = posting(
    "/api/generate",
    "Generate from a prompt (Ollama)",
    OllamaGenerateRequest,
    GenerateLine,
    streams=True,
    stream_type="application/x-ndjson",
    traced_as="text_completion",
    errors_as=ERRORS,
)

Asked = TypeVar("Asked", bound=OllamaFields)


class OllamaEndpoint(GenerateEndpoint[Asked], Generic[Asked]):
    """An endpoint that answers one conversation or prompt, in lines unless `stream` is false."""

    takes_forms_type = True
    ignores_unknown = True
    id_prefix = "ollama-"
    stream_form = JSON_LINES
    reply_spec = OllamaSpec
    show: Show
    names: OllamaDialect

    def understood(self, body: bytes, headers: Headers) -> Asked:
        request = super().understood(body, headers)
        return msgspec.structs.replace(request, stream=request.stream is not False)

    async def answer(self, request: Asked, call: HTTPCall) -> None:
        if self._unloads(request):
            current.get().check_unloads(request.model or "a model")
            if self._service.ring is None:
                check_control(call.scope, self._service.config, "keep_alive: 0")
        await super().answer(request, call)

    def check(self, request: Asked) -> None:
        self.names.check(request)
        check(request)
        num_logprobs(request)

    def failure(self, error: HTTPError) -> bytes:
        return encoded(error) + b"\n"

    @abstractmethod
    def only_loads(self, request: Asked) -> bool:
        """Whether it asks for no answer: clients have a model loaded so, before they ask."""

    @abstractmethod
    def chat_of(self, request: Asked) -> ChatRequest:
        """The request in chat's terms. Raises InvalidRequest."""

    async def _whole(self, request: Asked, terms: Terms, recorder: TimelineRecorder) -> list[bytes]:
        if not left_out() and self.only_loads(request):
            return [await self._loaded(request, terms)]
        return await super()._whole(request, terms, recorder)

    async def _stream(
        self, request: Asked, terms: Terms, recorder: TimelineRecorder, events: EventStream
    ) -> None:
        if not left_out() and self.only_loads(request):
            await events.write(await self._loaded(request, terms) + b"\n", last=True)
            return
        await super()._stream(request, terms, recorder, events)

    async def _loaded(self, request: Asked, terms: Terms) -> bytes:
        """What is always served stays loaded, whatever keep_alive says; what is started on demand
        is by now, or goes where keep_alive is 0."""
        backend = self._service.models.named(request.model)
        gone = gives_up(request.keep_alive)
        if self._unloads(request) and backend.residence is not None:
            backend.residence.unload()
            return loaded(backend.name or "", self.show, "unload")
        async with self._service.models.using(request.model, terms.deadline) as asked:
            check_generates(asked.engine.welcome)
            return loaded(asked.name, self.show, "unload" if gone else "load")

    def _unloads(self, request: Asked) -> bool:
        """Whether it has a model on demand unloaded. Raises what `named` raises."""
        if left_out() or not (self.only_loads(request) and gives_up(request.keep_alive)):
            return False
        return self._service.models.named(request.model).on_demand

    async def prepare(
        self, request: Asked, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        asked = self.chat_of(request)
        if asked.tools and not await shows_tools(engine):
            raise InvalidRequest(
                f"{head.model} does not support tools: its chat template does not show them",
                param="tools",
                code="unsupported_value",
            )
        chat = await prepared_chat(
            self._service,
            asked,
            engine,
            lease,
            max_tokens=most_tokens(request, engine),
            tools=ANY_TOOLS,
            own_words=self.names.own_words,
            now=head.created,
            logprobs=num_logprobs(request),
            truncation=_truncation(request, engine),
        )
        return chat.answered_by(self.reply_to(request, chat.parsing))

    def reply_to(self, request: Asked, parsing: ParsingSpec | None) -> OllamaSpec:
        """How the answer is written. parsing: how it is read."""
        return OllamaSpec(self.show is chat_line, parsing, bool(request.logprobs))


class OllamaChat(OllamaEndpoint[OllamaChatRequest]):
    request_type = OllamaChatRequest
    show = staticmethod(chat_line)
    names = CHAT_NAMES

    def only_loads(self, request: OllamaChatRequest) -> bool:
        return not request.messages

    def chat_of(self, request: OllamaChatRequest) -> ChatRequest:
        return of_chat(request)


class OllamaGenerate(OllamaEndpoint[OllamaGenerateRequest]):
    request_type = OllamaGenerateRequest
    show = staticmethod(generate_line)
    names = GENERATE_NAMES

    def only_loads(self, request: OllamaGenerateRequest) -> bool:
        return not request.prompt and not request.images

    def check(self, request: OllamaGenerateRequest) -> None:
        super().check(request)
        plain = "raw" if request.raw else "suffix" if request.suffix else ""
        if plain and (request.system or request.images or request.think is not None):
            raise InvalidRequest(
                f"with {plain}, no chat template is filled; it can't be combined with system,"
                " images or think",
                param=plain,
            )

    def chat_of(self, request: OllamaGenerateRequest) -> ChatRequest:
        return of_generate(request)

    async def prepare(
        self,
        request: OllamaGenerateRequest,
        engine: EngineInfo,
        head: ReplyHead,
        lease: MediaLease,
    ) -> PreparedRequest:
        if not (request.raw or request.suffix):
            return await super().prepare(request, engine, head, lease)
        prompt, tokenizer = request.prompt or "", engine.text.tokenizer
        limit, chat = engine.welcome.limits.max_model_len, of_generate(request)
        if request.suffix:
            ids, chat = await fim_prompt(prompt, request.suffix, chat, engine)
        else:
            ids = await encode(lambda most: tokenizer.encode(prompt, most=most), len(prompt), limit)
        try:
            most = most_tokens(request, engine)(len(ids))
            top = num_logprobs(request)
            params = sampling_params(chat, engine.welcome, max_tokens=most, logprobs=top)
        except InvalidRequest as error:
            raise self.names.own_words(error) from None
        blame = blame_of(chat, tools_of(chat))
        reply = self.reply_to(request, None)

        def blamed(error: InvalidRequest) -> InvalidRequest:
            return self.names.own_words(blame(error))

        return PreparedRequest([ids], [params], reply, blamed)


def _context(request: OllamaFields, engine: EngineInfo) -> int:
    """Tokens of the context that the request asks for, at most the model's."""
    most = engine.welcome.limits.max_model_len
    asked = None if request.options is None else request.options.num_ctx
    return most if asked is None else max(1, min(asked, most))


def _truncation(request: OllamaFields, engine: EngineInfo) -> tuple[int, str] | None:
    if request.truncate is False:
        return None
    return _context(request, engine) - 1, "truncate is true"


def most_tokens(request: OllamaFields, engine: EngineInfo) -> Callable[[int], int]:
    """num_predict, or as many as there is room for after a prompt of so many tokens."""
    options = request.options or Options()
    wanted = options.num_predict
    welcome = engine.welcome
    # Where a context may shift, Ollama's goes on beyond num_ctx.
    context = _context(request, engine) if request.shift is False else None

    def most(prompt_tokens: int) -> int:
        room = room_for_output(
            prompt_tokens,
            None,
            welcome.generation.max_new_tokens if wanted is None else None,
            welcome.limits,
            field="options.num_predict",
            source="messages" if isinstance(request, OllamaChatRequest) else "prompt",
        )
        if request.truncate is False and prompt_tokens >= _context(request, engine):
            raise InvalidRequest(
                f"the prompt has {prompt_tokens} tokens, truncate is false, and options.num_ctx is "
                f"{options.num_ctx}",
                param="options.num_ctx",
                code="context_length_exceeded",
            )
        if context is not None:
            room = max(1, min(room, context - prompt_tokens))
        return room if wanted is None or wanted < 0 else min(wanted, room)

    return most


def routes(service: Service) -> list[OperationRoute]:
    """The routes of chat and of generation."""
    return [CHAT.route(OllamaChat(service)), GENERATE.route(OllamaGenerate(service))]


# Turns Ollama's requests into those of a chat, and chat's errors into Ollama's form.


def of_chat(request: OllamaChatRequest) -> ChatRequest:
    """Raises InvalidRequest."""
    messages = [_message(message) for message in request.messages or ()]
    return _chat(request, messages, tools=request.tools or None)


def of_generate(request: OllamaGenerateRequest) -> ChatRequest:
    """Raises InvalidRequest."""
    asked = ChatMessage(role="user", content=request.prompt or "", images=request.images)
    messages = [_message(asked)]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    return _chat(request, messages)


def _chat(request: OllamaFields, messages: list[dict[str, Any]], **more: Any) -> ChatRequest:
    fields = {
        **CHAT_NAMES.ours(request),
        "messages": messages,
        "reasoning_effort": request.think if isinstance(request.think, str) else None,
        "chat_template_kwargs": _variables(request),
        **more,
    }
    try:
        chat = msgspec.convert(fields, ChatRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    return msgspec.structs.replace(chat, response_format=_format(request.format))


def _message(message: ChatMessage) -> dict[str, Any]:
    translated: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.images:
        pictures = [
            {"type": "image_url", "image_url": {"url": _picture(data)}} for data in message.images
        ]
        translated["content"] = [*pictures, {"type": "text", "text": message.content or ""}]
    if message.thinking is not None:
        translated["reasoning_content"] = message.thinking
    if message.tool_calls:
        translated["tool_calls"] = [
            {
                "id": call.id,
                "function": {
                    "name": call.function.name,
                    "arguments": msgspec.json.encode(call.function.arguments).decode(),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_name is not None:
        translated["name"] = message.tool_name
    if message.tool_call_id is not None:
        translated["tool_call_id"] = message.tool_call_id
    return msgspec.to_builtins(msgspec.convert(translated, Message))


def _picture(data: str) -> str:
    """Returns base64 data, whose type its decoder detects, or a data: URL as it is."""
    return data if data.startswith("data:") else f"data:;base64,{data}"


def _variables(request: OllamaFields) -> dict[str, Any] | None:
    think = request.think
    if think is None:
        return None
    return {"enable_thinking": bool(think)}


def _format(given: str | dict[str, Any] | None) -> ResponseFormat | None:
    if not given:
        return None
    if isinstance(given, str):
        return ResponseFormat(type="json_object")
    named = JsonSchemaFormat(name="answer", schema=given)
    return ResponseFormat(type="json_schema", json_schema=named)
