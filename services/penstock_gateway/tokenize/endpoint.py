"""POST /tokenize and /detokenize in vLLM's shapes, and what llama.cpp's editor plugins ask besides:
/tokenize of a `content`, and /apply-template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.prompt import (
    ChatMedia,
    ChatPrompt,
    chat_prompt,
    check_variables,
    refuse_template,
)
from penstock_gateway.chat.tool_choice import ToolChoice
from penstock_gateway.chat.tools import Tool, tool_use
from penstock_gateway.generate.chunked_reply import Pace
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.fields import Flag, Object, Text
from penstock_gateway.request.sampling import check_ids
from penstock_gateway.request.tokenising import encode, off_the_loop
from penstock_gateway.service import Service
from penstock_gateway.tokenize.located import LocatedToken, decoding, located_tokens
from penstock_gateway.tokenize.text_endpoint import SOME, TextEndpoint


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a prompt or messages; what concerns the other kind is refused.

    add_special_tokens: BOS goes in front; default: true for a prompt, false for messages and
    content.  return_token_strs: the vocabulary's own text of each token too.
    content, add_special: llama.cpp's words for prompt and add_special_tokens.  parse_special:
    whether texts of special tokens are parsed; default: true.  with_pieces: llama.cpp's form, in
    which a token is an object with its id and its text.
    inputs: texts whose tokens come with their places, as TEI and TGI have it; prompt_name: as in
    /embed.
    """

    model: Text = None
    prompt: Text = None
    inputs: str | list[str] | None = None
    prompt_name: Text = None
    content: Text = None
    add_special: Flag = None
    parse_special: Flag = None
    with_pieces: Flag = None
    messages: list[Message] | None = None
    add_special_tokens: Flag = None
    return_token_strs: Flag = None
    add_generation_prompt: Flag = None
    continue_final_message: Flag = None
    chat_template: Text = None
    chat_template_kwargs: Object = None
    mm_processor_kwargs: Object = None
    tools: list[Tool] | None = None


class TokenPiece(msgspec.Struct, frozen=True, gc=False):
    """piece: its text, or its bytes where they are no whole characters."""

    id: int
    piece: str | list[int]


class TokenizeReply(msgspec.Struct):
    """count: of the tokens.  max_model_len: the context, prompt and output."""

    count: int
    max_model_len: int
    tokens: Sequence[int | TokenPiece]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: Text = None


class DetokenizeReply(msgspec.Struct):
    """prompt: the text, special tokens included.  content: the same, as llama.cpp calls it."""

    prompt: str
    content: str


Made = TypeVar("Made")
WITH_INPUTS = ("inputs", "model", "add_special_tokens", "prompt_name")
_TEXT_ONLY = ("content", "add_special", "parse_special")
_CHAT_ONLY = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "tools",
)


class Tokenize(TextEndpoint[TokenizeRequest]):
    """The ids that a prompt or a conversation has on the generating endpoints."""

    request_type = TokenizeRequest

    async def reply(self, request: TokenizeRequest, engine: EngineInfo, lease: MediaLease) -> Any:
        _check_inputs(request)
        if request.inputs is not None:
            return await located_tokens(request, engine)
        return await super().reply(request, engine, lease)

    async def answer(
        self, request: TokenizeRequest, engine: EngineInfo, lease: MediaLease
    ) -> TokenizeReply:
        request = _with_prompt(request)
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequest("give either prompt or messages", param="prompt")
        if request.messages is None:
            prompt_token_ids = await _of_prompt(request, engine)
        else:
            media = self._service.media
            prompt = await _of_messages(
                request,
                request.messages,
                engine,
                ChatMedia(media, lease, request.mm_processor_kwargs, self._service.store),
            )
            prompt_token_ids = prompt.prompt_token_ids
        names = None
        if request.return_token_strs:
            names = await _some_at_a_time(prompt_token_ids, engine.text.tokenizer.token_names)
        limit = engine.welcome.limits.max_model_len
        reply = TokenizeReply(len(prompt_token_ids), limit, prompt_token_ids, names)
        if request.with_pieces:
            tokenizer = engine.text.tokenizer
            reply.tokens = await _some_at_a_time(
                prompt_token_ids, lambda some: _pieces(some, tokenizer)
            )
        return reply


class TemplateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation, as for chat. tool_choice: `none` hides the tools from the model; nothing else
    has an effect."""

    messages: list[Message]
    model: Text = None
    add_generation_prompt: Flag = None
    chat_template_kwargs: Object = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice = None


class TemplateReply(msgspec.Struct):
    """prompt: the filled chat template."""

    prompt: str


class ApplyTemplate(TextEndpoint[TemplateRequest]):
    """The text of a conversation's prompt. Media are marks in it."""

    request_type = TemplateRequest

    async def answer(
        self, request: TemplateRequest, engine: EngineInfo, lease: MediaLease
    ) -> TemplateReply:
        asked = TokenizeRequest(
            messages=request.messages,
            add_generation_prompt=request.add_generation_prompt,
            chat_template_kwargs=request.chat_template_kwargs,
            tools=None if request.tool_choice == "none" else request.tools,
        )
        media = ChatMedia(self._service.media, lease, None, self._service.store)
        return TemplateReply((await _of_messages(asked, request.messages, engine, media)).text)


class Detokenize(TextEndpoint[DetokenizeRequest]):
    request_type = DetokenizeRequest

    async def answer(
        self, request: DetokenizeRequest, engine: EngineInfo, lease: MediaLease
    ) -> DetokenizeReply:
        if request.tokens:
            check_ids("tokens", request.tokens, engine.welcome.limits.vocab_size)
        decode_all = partial(engine.text.tokenizer.decode, skip_special_tokens=False)
        tokens = request.tokens
        text = await off_the_loop(lambda: decode_all(tokens), len(tokens))
        return DetokenizeReply(text, text)


async def _some_at_a_time(
    ids: list[int], made: Callable[[list[int]], Sequence[Made]]
) -> list[Made]:
    """What is made of all ids, SOME in a piece, with turns of the event loop for others."""
    found: list[Made] = []
    pace = Pace()
    for at in range(0, len(ids), SOME):
        found += made(ids[at : at + SOME])
        await pace.rest()
    return found


def _pieces(ids: list[int], tokenizer: Tokenizer) -> list[TokenPiece]:
    found = []
    for token in ids:
        raw = tokenizer.token_bytes(token)
        try:
            found.append(TokenPiece(token, raw.decode()))
        except UnicodeDecodeError:
            found.append(TokenPiece(token, list(raw)))
    return found


def _check_inputs(request: TokenizeRequest) -> None:
    """Raises InvalidRequest for what belongs to another form of the request."""
    if request.inputs is None:
        if request.prompt_name is not None:
            raise InvalidRequest("prompt_name is allowed only with inputs", param="prompt_name")
        return
    for field in request.__struct_fields__:
        if field not in WITH_INPUTS and getattr(request, field) is not None:
            raise InvalidRequest(
                f"{field} is not allowed with inputs; allowed: {', '.join(WITH_INPUTS[1:])}",
                param=field,
            )


def _with_prompt(request: TokenizeRequest) -> TokenizeRequest:
    """The request with `prompt` where it has llama.cpp's `content`. Raises InvalidRequest for
    both, and for fields of a text besides messages."""
    if request.messages is not None:
        for field in _TEXT_ONLY:
            if getattr(request, field) is not None:
                raise InvalidRequest(
                    f"{field} is allowed only with prompt, not with messages", param=field
                )
    if request.content is None and request.add_special is None:
        return request
    if request.content is not None and request.prompt is not None:
        raise InvalidRequest("prompt and content mean the same: set only one", param="content")
    if request.add_special is not None and request.add_special_tokens is not None:
        raise InvalidRequest(
            "add_special and add_special_tokens mean the same: set only one", param="add_special"
        )
    special = request.add_special_tokens if request.add_special is None else request.add_special
    if request.content is not None:
        special = bool(special)
    prompt = request.prompt if request.content is None else request.content
    return msgspec.structs.replace(
        request, prompt=prompt, content=None, add_special_tokens=special, add_special=None
    )


async def _of_prompt(request: TokenizeRequest, engine: EngineInfo) -> list[int]:
    for field in _CHAT_ONLY:
        if getattr(request, field) is not None:
            raise InvalidRequest(
                f"{field} is allowed only with messages, not with prompt", param=field
            )
    prompt, tokenizer = request.prompt or "", engine.text.tokenizer
    special = request.add_special_tokens is not False
    parsed = request.parse_special is not False
    return await encode(
        lambda most: tokenizer.encode(prompt, add_special=special, parse_special=parsed, most=most),
        len(prompt),
        engine.welcome.limits.max_model_len,
    )


async def _of_messages(
    request: TokenizeRequest,
    messages: list[Message],
    engine: EngineInfo,
    with_media: ChatMedia,
) -> ChatPrompt:
    check_variables(request.chat_template_kwargs)
    refuse_template(request.chat_template)
    variables: dict[str, Any] = dict(request.chat_template_kwargs or {})
    use = tool_use(request.tools, None, parallel=None, auto_allowed=True)
    if use.tools:
        variables["tools"] = use.for_template()
    return await chat_prompt(
        engine,
        messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=request.add_special_tokens,
        variables=variables,
        with_media=with_media,
    )


TOKENIZE = posting(
    "/tokenize",
    "Tokenize a prompt or a conversation",
    TokenizeRequest,
    TokenizeReply | list[LocatedToken | list[LocatedToken]],
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
APPLY_TEMPLATE = posting(
    "/apply-template",
    "Fill the chat template with a conversation (llama.cpp)",
    TemplateRequest,
    TemplateReply,
    tag="text",
    headers=(),
)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of tokenising, detokenising and filled templates."""
    return [
        TOKENIZE.route(Tokenize(service)),
        DETOKENIZE.route(Detokenize(service)),
        APPLY_TEMPLATE.route(ApplyTemplate(service)),
        decoding(service),
    ]
