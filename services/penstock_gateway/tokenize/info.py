"""GET /tokenizer_info: what clients look up in a tokenizer_config.json. lm-eval and others that ask
a server to tokenise take the special tokens and the chat template from it."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from penstock.text.template import token_variables
from penstock_gateway.http.operations import Operation, OperationRoute, asked
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.service import Service

CLASS = "PreTrainedTokenizerFast"
"""transformers' class that reads a tokenizer.json whatever the model."""


class AddedTokenInfo(msgspec.Struct, frozen=True):
    """A token that is found in a text before it is split into words."""

    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """bos_token, eos_token, chat_template: left out of a model that has none. model_max_length:
    tokens of the context, prompt and output.  added_tokens_decoder: by id."""

    tokenizer_class: str
    model_max_length: int
    add_bos_token: bool
    bos_token: str | UnsetType = UNSET
    eos_token: str | UnsetType = UNSET
    added_tokens_decoder: dict[int, AddedTokenInfo]
    chat_template: str | UnsetType = UNSET


OPERATION = Operation(
    method="GET",
    path="/tokenizer_info",
    summary="The tokenizer's special tokens and the chat template",
    tag="text",
    reply=TokenizerInfo,
    query={"model": ("The model, where the server has several.", {"type": "string"})},
    statuses=(404,),
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""

    async def info(request: Request) -> Response:
        async with service.models.using(asked(request, "model")) as model:
            found = msgspec.json.encode(tokenizer_info(model.engine))
        return Response(found, media_type="application/json")

    return [OPERATION.route(info)]


def tokenizer_info(engine: EngineInfo) -> TokenizerInfo:
    """What is known of a model's tokenizer."""
    text, welcome = engine.text, engine.welcome
    tokenizer = text.tokenizer
    named = token_variables(tokenizer, welcome.generation)
    return TokenizerInfo(
        tokenizer_class=CLASS,
        model_max_length=welcome.limits.max_model_len,
        add_bos_token=tokenizer.add_bos,
        bos_token=named.get("bos_token", UNSET),
        eos_token=named.get("eos_token", UNSET),
        added_tokens_decoder={
            token: AddedTokenInfo(
                added.content,
                added.special,
                added.single_word,
                added.lstrip,
                added.rstrip,
                added.normalized,
            )
            for token, added in sorted(tokenizer.added_tokens.items())
        },
        chat_template=UNSET if text.template is None else text.template.source,
    )
