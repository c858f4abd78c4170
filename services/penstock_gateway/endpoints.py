"""The table of endpoints: everything that the main port serves, except the document made from
it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import WebSocketRoute

from penstock.config.bundled import bundled
from penstock.config.plugins import ENDPOINTS as PLUGGED
from penstock_gateway.adapters import endpoint as adapters
from penstock_gateway.batches import endpoint as batches
from penstock_gateway.chat import endpoint as chat
from penstock_gateway.completions import endpoint as completions
from penstock_gateway.control import collective_rpc, sleep, weights
from penstock_gateway.conversations import endpoint as conversations
from penstock_gateway.files import endpoint as files
from penstock_gateway.fim import endpoint as fim
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.live import endpoint as live
from penstock_gateway.metrics import endpoint as metrics
from penstock_gateway.pooling import classify, embeddings, pooling, rerank, score
from penstock_gateway.realtime import endpoint as realtime
from penstock_gateway.responses import compact
from penstock_gateway.responses import endpoint as responses
from penstock_gateway.responses import inputs as response_inputs
from penstock_gateway.service import Service
from penstock_gateway.system import health, models, page, status, version
from penstock_gateway.tokenize import endpoint as tokenize
from penstock_gateway.tokenize import info as tokenizer_info
from penstock_gateway.transcription import endpoint as transcription

ENDPOINTS: tuple[Callable[[Service], list[OperationRoute]], ...] = (
    chat.routes,
    completions.routes,
    fim.routes,
    responses.routes,
    response_inputs.routes,
    compact.routes,
    conversations.routes,
    transcription.routes,
    tokenize.routes,
    tokenizer_info.routes,
    models.routes,
    adapters.routes,
    embeddings.routes,
    pooling.routes,
    score.routes,
    rerank.routes,
    classify.routes,
    files.routes,
    batches.routes,
    health.routes,
    status.routes,
    live.routes,
    sleep.routes,
    collective_rpc.routes,
    weights.routes,
    version.routes,
    metrics.routes,
    page.routes,
    *bundled(PLUGGED),
)
"""A new endpoint is a line here. Its operation, in its own module, says the rest: what the router,
the API keys, the traces and the OpenAPI document need to know of it."""


def routes_of(service: Service) -> list[OperationRoute]:
    """Every route of a gateway's main port that an endpoint serves."""
    return [route for routes in ENDPOINTS for route in routes(service)]


def sockets_of(service: Service) -> list[WebSocketRoute]:
    """The WebSocket routes, which are no part of the OpenAPI document."""
    return realtime.sockets(service)
