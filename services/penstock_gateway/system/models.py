"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.config.bundled import MODEL_VIEWS, bundled
from penstock.model.media_facts import MediaKind
from penstock.model.transcription_facts import SpokenChat
from penstock.protocol.common import NamedAdapter
from penstock.protocol.to_frontend import Welcome
from penstock.request.chat_params import chat_params
from penstock.request.generation_config import sampling_defaults
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.keys.ring import current
from penstock_gateway.models.backend import ModelBackend
from penstock_gateway.service import Service
from penstock_gateway.system.model_views import ModelView

VIEWS: tuple[ModelView, ...] = tuple(bundled(MODEL_VIEWS))


class ModelCard(msgspec.Struct, tag_field="object", tag="model"):
    """created: Unix time of the engine's start, seconds.  max_model_len: tokens, in and out; null
    while the model has never been loaded.  default_sampling_params: what a request gets that leaves
    these fields out; where it is silent too, OpenAI's defaults."""

    id: str
    created: int
    max_model_len: int | None
    owned_by: str = "penstock"
    tasks: tuple[str, ...] = ("generate",)
    """What it does: `generate`, a speech model's `transcription`, or a pooling model's `embed`,
    `token_embed`, `classify`."""
    default_sampling_params: dict[str, float | int] = {}
    chat_params: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """What the page and `penstock chat` add where nothing is set, `system` as the system prompt; of
    a model that chats."""
    root: str | None = None
    """The model's name; of an adapter, the digest of its contents."""
    parent: str | None = None
    """The model that an adapter is applied to; null for a model."""
    hub_id: str | msgspec.UnsetType = msgspec.UNSET
    """The model's name on the hub, where its files came from there."""
    media: dict[str, int] = {}
    """Kinds of media that a prompt may hold, and how many of each; empty: the model takes text
    only."""
    state: str | msgspec.UnsetType = msgspec.UNSET
    """The model's state, where models are started and ended: `ready`, `starting`, `absent` (a
    request has it started), `failed` and the like."""
    reason: str | msgspec.UnsetType = msgspec.UNSET
    """Why it failed."""
    tool_call_parser: str | msgspec.UnsetType = msgspec.UNSET
    """The format of its tool calls, which `auto` recognised or the operator named; of a model that
    has a chat template."""
    reasoning_parser: str | msgspec.UnsetType = msgspec.UNSET
    """The format of its thoughts."""
    arithmetic: tuple[tuple[str, ...], ...] | msgspec.UnsetType = msgspec.UNSET
    """What computes it, in the worker's words: kernels and their versions, types of numbers, the
    order of sums, and libraries that were chosen at its start; while a worker is ready. One list
    where all engine cores compute alike, and else each that one of them has."""
    type: str = "base"
    """Without it and the next two, Mistral's clients can't read the list."""
    max_context_length: int | msgspec.UnsetType = msgspec.UNSET
    """max_model_len."""
    capabilities: dict[str, bool] = {}
    """What it does, in Mistral's words; empty while that isn't known."""


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[ModelCard]


LIST = Operation(
    method="GET",
    path="/v1/models",
    summary="List the served models",
    tag="models",
    reply=ModelList,
    query={
        "client_version": ("Codex's own: accepted, without effect.", {"type": "string"}),
        **{name: said for view in VIEWS for name, said in view.of_list.items()},
    },
)
# Hub ids hold a slash.
ONE = Operation(
    method="GET",
    path="/v1/models/{name:path}",
    summary="One model",
    tag="models",
    reply=ModelCard,
    statuses=(404,),
    query={name: said for view in VIEWS for name, said in view.of_one.items()},
)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of models; 503 while there is no engine core, unless one is started on
    demand."""

    async def models(request: Request) -> Response:
        backends = service.models.backends
        # Of several models, those that exist are listed, whatever their state.
        cards = [card for backend in backends for card in _cards(service, backend)]
        view = _view_for(request)
        if view is not None:
            return _json(view.page(request, cards))
        for other in VIEWS:
            other.refuse(request)
        return _json(ModelList(cards))

    async def model(request: Request) -> Response:
        card, view = one(request), _view_for(request)
        return _json(card if view is None else view.one(card))

    def one(request: Request) -> ModelCard:
        name = request.path_params["name"]
        backend = service.models.backend_of(name)
        if _is_away(service, backend) and name in backend.given_names:
            current.get().check_model(backend.given_names[0])
            return _card_of_absent(backend, name)
        asked = backend.ask(name)
        adapter = None if asked.adapter is None else backend.client.adapters.find(name)
        return _card(service, asked.engine.welcome, backend, name, adapter)

    short = replace(LIST, path=LIST.path.removeprefix("/v1"))  # As llama-server has it.
    return [LIST.route(models), short.route(models), ONE.route(model)]


def _is_away(service: Service, backend: ModelBackend) -> bool:
    """Whether it has to be listed without an engine core that knows it."""
    may_be = service.models.several or backend.residence is not None
    return may_be and backend.client.welcome is None


def _cards(service: Service, backend: ModelBackend) -> list[ModelCard]:
    """What the key may not use isn't there for it. Raises EngineUnavailable for the only model
    while it is away."""
    caller = current.get()
    if _is_away(service, backend):
        names = backend.given_names if caller.may_use(backend.given_names[0]) else ()
        return [_card_of_absent(backend, name) for name in names]
    known = backend.client.welcome
    if known is None or not (service.models.several or backend.residence is not None):
        known = backend.engine().welcome
    cards: list[ModelCard] = []
    if caller.may_use(backend.name or known.model):
        cards = [_card(service, known, backend, name) for name in backend.model_names()]
    for adapter in backend.client.adapters.present():
        if caller.may_use(adapter.name):
            cards.append(_card(service, known, backend, adapter.name, adapter))
    return cards


def _card_of_absent(backend: ModelBackend, name: str) -> ModelCard:
    card = ModelCard(name, 0, None, root=backend.name)
    card.state, card.reason = _state(backend)
    return card


def _state(backend: ModelBackend) -> tuple[str | msgspec.UnsetType, str | msgspec.UnsetType]:
    """Returns presence and reason as `ModelCard` has them; nothing where models aren't loaded on
    demand."""
    if backend.residence is None:
        return msgspec.UNSET, msgspec.UNSET
    state = backend.residence.state
    if state is None:
        return "unknown", msgspec.UNSET
    return state.presence, state.reason or msgspec.UNSET


def _card(
    service: Service,
    welcome: Welcome,
    backend: ModelBackend,
    name: str,
    adapter: NamedAdapter | None = None,
) -> ModelCard:
    root, parent = welcome.model, None
    if adapter is not None and adapter.file is not None:
        root, parent = adapter.file.digest, adapter.parent or welcome.model
    state, reason = _state(backend)
    tasks = _tasks_of(welcome)
    return ModelCard(
        name,
        welcome.created,
        welcome.limits.max_model_len,
        tasks=tasks,
        default_sampling_params=sampling_defaults(welcome.generation),
        chat_params=_chat_params(welcome) if "generate" in tasks else msgspec.UNSET,
        root=root,
        parent=parent,
        hub_id=welcome.hub_id or msgspec.UNSET,
        media=_media_of(welcome, service.media.limits),
        state=state,
        reason=reason,
        arithmetic=backend.client.arithmetics or msgspec.UNSET,
        max_context_length=welcome.limits.max_model_len,
        capabilities=_capabilities(backend, tasks),
        **backend.formats(),
    )


def _capabilities(backend: ModelBackend, tasks: tuple[str, ...]) -> dict[str, bool]:
    known = backend.capabilities()
    return {
        "completion_chat": "generate" in tasks,
        "completion_fim": "insert" in known,
        "function_calling": "tools" in known,
        "reasoning": "thinking" in known,
        "vision": "vision" in known,
        "classification": "classify" in tasks,
        "audio_transcription": "transcription" in tasks,
    }


def _chat_params(welcome: Welcome) -> dict[str, Any]:
    return chat_params(welcome.hub_id or welcome.model)


def _tasks_of(welcome: Welcome) -> tuple[str, ...]:
    if welcome.pooling is not None:
        return welcome.pooling_tasks
    facts = None if welcome.media is None else welcome.media.transcription
    if facts is None:
        return ("generate",)
    return ("generate", "transcription") if isinstance(facts, SpokenChat) else ("transcription",)


def _media_of(welcome: Welcome, limits: Mapping[MediaKind, int]) -> dict[str, int]:
    if welcome.media is None or welcome.media.in_front is not None:
        return {}  # What an encoder takes stands in no message.
    if welcome.pooling is not None:
        return dict.fromkeys(welcome.media.kinds, 1) if welcome.media.alone else {}
    return {kind: limits[kind] for kind in welcome.media.kinds if limits.get(kind)}


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _view_for(request: Request) -> ModelView | None:
    """Returns the view whose client asks; None for a client of OpenAI's API."""
    return next((view for view in VIEWS if view.asked(request)), None)
