"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.generation_config import sampling_defaults
from penstock.media_facts import MediaKind
from penstock.protocol.common import NamedAdapter
from penstock.protocol.to_frontend import Welcome
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.keys.caller import current
from penstock_gateway.service import Service


class ModelCard(msgspec.Struct, tag_field="object", tag="model"):
    """created: Unix time of the engine's start, seconds.  max_model_len: tokens, in and out.
    default_sampling_params: what a request gets that leaves these fields out; where it is silent
    too, OpenAI's defaults."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "penstock"
    tasks: tuple[str, ...] = ("generate",)
    """What it does: `generate`, a speech model's `transcription`, or a pooling model's `embed`,
    `token_embed`, `classify`."""
    default_sampling_params: dict[str, float | int] = {}
    root: str | None = None
    """The model's name; of an adapter, the digest of its contents."""
    parent: str | None = None
    """Of an adapter: the model that it is applied to."""
    media: dict[str, int] = {}
    """Kinds of media that a prompt may hold, and how many of each; empty: the model takes text
    only."""


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[ModelCard]


LIST = Operation(
    method="GET",
    path="/v1/models",
    summary="The models that are served",
    tag="models",
    reply=ModelList,
)
# Hub ids hold a slash.
ONE = Operation(
    method="GET",
    path="/v1/models/{name:path}",
    summary="One model",
    tag="models",
    reply=ModelCard,
    statuses=(404,),
)


def routes(service: Service) -> list[OperationRoute]:
    """Both routes; 503 while there is no engine core."""

    async def models(request: Request) -> Response:
        welcome, caller = service.engine().welcome, current.get()
        cards: list[ModelCard] = []
        # What the key may not use isn't there for it.
        if caller.may_use(welcome.model):
            cards += [_card(service, name) for name in (welcome.model, *welcome.other_names)]
        for adapter in service.client.adapters.present():
            if caller.may_use(adapter.name):
                cards.append(_card(service, adapter.name, adapter))
        return _json(ModelList(cards))

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        asked = service.check_model(name)
        adapter = None if asked.adapter is None else service.client.adapters.find(name)
        return _json(_card(service, name, adapter))

    return [LIST.route(models), ONE.route(model)]


def _card(service: Service, name: str, adapter: NamedAdapter | None = None) -> ModelCard:
    welcome = service.engine().welcome
    root, parent = welcome.model, None
    if adapter is not None and adapter.file is not None:
        root, parent = adapter.file.digest, adapter.parent or welcome.model
    return ModelCard(
        name,
        welcome.created,
        welcome.limits.max_model_len,
        tasks=_tasks_of(welcome),
        default_sampling_params=sampling_defaults(welcome.generation),
        root=root,
        parent=parent,
        media={} if welcome.pooling is not None else _media_of(welcome, service.media.limits),
    )


def _tasks_of(welcome: Welcome) -> tuple[str, ...]:
    if welcome.pooling is not None:
        return welcome.pooling_tasks
    hears = welcome.media is not None and welcome.media.transcription is not None
    return ("transcription",) if hears else ("generate",)


def _media_of(welcome: Welcome, limits: Mapping[MediaKind, int]) -> dict[str, int]:
    if welcome.media is None or welcome.media.in_front is not None:
        return {}  # What an encoder takes stands in no message.
    return {kind: limits[kind] for kind in welcome.media.kinds if limits.get(kind)}


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
