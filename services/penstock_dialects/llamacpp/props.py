"""GET /props, as llama-server's clients ask what is served."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.request.generation_config import sampling_defaults
from penstock.version import __version__
from penstock_dialects.llamacpp.completion import DEFAULTS
from penstock_gateway.http.operations import Operation, OperationRoute, asked
from penstock_gateway.models.backend import AskedModel
from penstock_gateway.service import Service


class Defaults(msgspec.Struct, frozen=True):
    """n_ctx: tokens, prompt and output.  params: what /completion gets that leaves these out."""

    n_ctx: int
    params: dict[str, float | int]


class Modalities(msgspec.Struct, frozen=True):
    """What a message of a chat may hold besides text."""

    vision: bool
    audio: bool


class Props(msgspec.Struct, frozen=True, kw_only=True):
    """total_slots: answers that may run in one step.  model_path: the model's name, as a gateway
    knows no paths.  chat_template: in Jinja; empty: there is none.  bos_token, eos_token: their
    texts; empty: there is none."""

    default_generation_settings: Defaults
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    build_info: str


OPERATION = Operation(
    method="GET",
    path="/props",
    summary="What is served, and its defaults (llama.cpp)",
    tag="models",
    reply=Props,
    statuses=(404,),
    query={
        "model": ("Of several models, which; by default the first.", {"type": "string"}),
        "autoload": ("Accepted, without effect.", {"type": "string"}),
    },
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""

    async def props(request: Request) -> Response:
        name = asked(request, "model")
        own = service.models.backend_of(name).ask(name)
        return Response(msgspec.json.encode(_props(own, service)), media_type="application/json")

    return [OPERATION.route(props)]


def _props(own: AskedModel, service: Service) -> Props:
    welcome, text = own.engine.welcome, own.engine.text
    generation = welcome.generation
    media = () if welcome.media is None else welcome.media.kinds
    limits = service.media.limits

    def name_of(token: int | None) -> str:
        return "" if token is None else text.tokenizer.token_names([token])[0]

    return Props(
        default_generation_settings=Defaults(
            welcome.limits.max_model_len, DEFAULTS | sampling_defaults(generation)
        ),
        total_slots=welcome.limits.max_num_seqs,
        model_alias=own.name,
        model_path=welcome.model,
        chat_template="" if text.template is None else text.template.source,
        bos_token=name_of(generation.bos_token_id),
        eos_token=name_of(next(iter(generation.eos_token_ids), None)),
        modalities=Modalities(
            vision="image" in media and bool(limits.get("image")),
            audio="audio" in media and bool(limits.get("audio")),
        ),
        build_info=f"penstock {__version__}",
    )
