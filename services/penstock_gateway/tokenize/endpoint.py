"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock.media.desk import MediaLease
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.prompt import ChatMedia, chat_prompt, check_variables, refuse_template
from penstock_gateway.chat.tools import Tool, tool_use
from penstock_gateway.http.events import while_connected
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.http.replies import send_json
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import Flag, Object, Text, terms_headers
from penstock_gateway.request.sampling import check_ids
from penstock_gateway.request.tokenising import encode, off_the_loop
from penstock_gateway.service import Service


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a prompt or messages; what concerns the other kind is refused.

    add_special_tokens: BOS goes in front; default: true for a prompt, false for messages.
    return_token_strs: the vocabulary's own text of each token too.
    """

    model: Text = None
    prompt: Text = None
    messages: list[Message] | None = None
    add_special_tokens: Flag = None
    return_token_strs: Flag = None
    add_generation_prompt: Flag = None
    continue_final_message: Flag = None
    chat_template: Text = None
    chat_template_kwargs: Object = None
    mm_processor_kwargs: Object = None
    tools: list[Tool] | None = None


class TokenizeReply(msgspec.Struct):
    """count: of the tokens.  max_model_len: the context, prompt and output."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: Text = None


class DetokenizeReply(msgspec.Struct):
    """prompt: the text, special tokens included."""

    prompt: str


class NamesModel(Protocol):
    """A body that may say for which model it is."""

    @property
    def model(self) -> str | None: ...


Request = TypeVar("Request", bound=NamesModel)
_CHAT_ONLY = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "tools",
)


class TextEndpoint(JsonEndpoint[Request], Generic[Request]):
    """Asks the tokenizer only."""

    answers_while_leaving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        tenant = terms_headers(scope).tenant
        payload = await while_connected(self._answer(request, tenant), receive)
        await send_json(send, 200, payload)

    async def _answer(self, request: Request, tenant: str) -> bytes:
        async with self._service.models.using(request.model) as asked:
            with self._service.media.lease(tenant) as lease:
                return msgspec.json.encode(await self.answer(request, asked.engine, lease))

    @abstractmethod
    async def answer(
        self, request: Request, engine: EngineInfo, lease: MediaLease
    ) -> msgspec.Struct:
        """Raises InvalidRequest."""


class Tokenize(TextEndpoint[TokenizeRequest]):
    """The ids that a prompt or a conversation has on the generating endpoints."""

    request_type = TokenizeRequest

    async def answer(
        self, request: TokenizeRequest, engine: EngineInfo, lease: MediaLease
    ) -> TokenizeReply:
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequest("give either prompt or messages", param="prompt")
        if request.messages is None:
            prompt_token_ids = await _of_prompt(request, engine)
        else:
            prompt_token_ids = await _of_messages(
                request,
                request.messages,
                engine,
                ChatMedia(
                    self._service.media, lease, request.mm_processor_kwargs, self._service.store
                ),
            )
        names = None
        if request.return_token_strs:
            names = engine.text.tokenizer.token_names(prompt_token_ids)
        limit = engine.welcome.limits.max_model_len
        return TokenizeReply(len(prompt_token_ids), limit, prompt_token_ids, names)


class Detokenize(TextEndpoint[DetokenizeRequest]):
    request_type = DetokenizeRequest

    async def answer(
        self, request: DetokenizeRequest, engine: EngineInfo, lease: MediaLease
    ) -> DetokenizeReply:
        if request.tokens:
            check_ids("tokens", request.tokens, engine.welcome.limits.vocab_size)
        decode_all = partial(engine.text.tokenizer.decode, skip_special_tokens=False)
        tokens = request.tokens
        return DetokenizeReply(await off_the_loop(lambda: decode_all(tokens), len(tokens)))


async def _of_prompt(request: TokenizeRequest, engine: EngineInfo) -> list[int]:
    for field in _CHAT_ONLY:
        if getattr(request, field) is not None:
            raise InvalidRequest(
                f"{field} is allowed only with messages, not with prompt", param=field
            )
    prompt, tokenizer = request.prompt or "", engine.text.tokenizer
    special = request.add_special_tokens is not False
    return await encode(
        lambda most: tokenizer.encode(prompt, add_special=special, most=most),
        len(prompt),
        engine.welcome.limits.max_model_len,
    )


async def _of_messages(
    request: TokenizeRequest,
    messages: list[Message],
    engine: EngineInfo,
    with_media: ChatMedia,
) -> list[int]:
    check_variables(request.chat_template_kwargs)
    refuse_template(request.chat_template)
    variables: dict[str, Any] = dict(request.chat_template_kwargs or {})
    use = tool_use(request.tools, None, parallel=None, auto_allowed=True)
    if use.tools:
        variables["tools"] = use.for_template()
    prompt = await chat_prompt(
        engine,
        messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=request.add_special_tokens,
        variables=variables,
        with_media=with_media,
    )
    return prompt.prompt_token_ids


TOKENIZE = posting(
    "/tokenize",
    "Tokenize a prompt or a conversation",
    TokenizeRequest,
    TokenizeReply,
    tag="text",
    headers=(),
)
DETOKENIZE = posting(
    "/detokenize",
    "Detokenize token ids",
    DetokenizeRequest,
    DetokenizeReply,
    tag="text",
    headers=(),
)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of tokenising and detokenising."""
    return [TOKENIZE.route(Tokenize(service)), DETOKENIZE.route(Detokenize(service))]
