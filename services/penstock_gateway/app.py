"""The ASGI applications: the one on the main port, and the admin's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Match

from penstock.client.observer import Observer, Observers
from penstock.config.settings import GatewayConfig, MediaSettings
from penstock.media.desk import MediaDesk
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.endpoints import routes_of, sockets_of
from penstock_gateway.http import openapi
from penstock_gateway.http.access_log import AccessLog, AccessObserver
from penstock_gateway.http.boundary import Boundary, add_cors
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.keys.rate_limits import RateLimitObserver, RateLimits
from penstock_gateway.keys.ring import Access, KeyRing
from penstock_gateway.keys.spend import SpendObserver
from penstock_gateway.metrics import endpoint as metrics
from penstock_gateway.metrics.counts import CountingObserver
from penstock_gateway.models.backend import ModelBackend, ModelRegistry
from penstock_gateway.plugged.endpoints import plugged_routes
from penstock_gateway.plugged.observers import plugged_loggers
from penstock_gateway.preparing.preparer import Preparer
from penstock_gateway.preparing.whole import answer_elsewhere
from penstock_gateway.receipts import receipts_of
from penstock_gateway.service import Patience, Service
from penstock_gateway.storage.held_responses import HeldResponses
from penstock_gateway.system import health
from penstock_gateway.tracing.layer import TraceLayer, TraceObserver, tracing_of

if TYPE_CHECKING:
    from penstock.client import EngineClient
    from penstock_gateway.storage.store import Store


MOST_STEPS = 12
"""Segments that are looked at in a path without an endpoint."""


def create_app(
    models: EngineClient | Sequence[ModelBackend],
    config: GatewayConfig,
    *,
    patience: Patience | None = None,
    gateways: int = 1,
    media: MediaSettings | None = None,
    adapters: AdapterFolders | None = None,
    store: Store | None = None,
    more: Callable[[Service], list[OperationRoute]] | None = None,
) -> FastAPI:
    """A gateway over the engine client of one model, or over several models, whose clients the
    caller starts and closes. `app.state.service` is what its endpoints share.  gateways: how many
    share the work.  media: settings of pictures.  adapters: where adapters may be read while it
    runs, for the one model.  store: files and batches; the caller closes it.  more: routes besides
    those of the HTTP API.

    Raises StartupError for a file of API keys that is wrong, for traces without their extra, for a
    plug-in that `--plugins` names and that can't be used, and for a key of receipts that can't be
    had.
    """
    ring = KeyRing.of(config, gateways)
    if not isinstance(models, Sequence):
        models = [ModelBackend(models, config, folders=adapters)]
    service = Service(
        ModelRegistry(models),
        config,
        patience or Patience(),
        ring=ring,
        limits=None if ring is None else _limits(config),
        tracing=tracing_of(config),
        media=MediaDesk(media or MediaSettings()),
        store=store,
        held=_held(config, store, gateways),
        receipts=receipts_of(config.receipt_key_file),
    )
    service.preparers.connect(
        lambda: Preparer(service, config.max_body_memory_mib << 20),
        partial(answer_elsewhere, service),
    )
    for backend in models:
        backend.spend = None if ring is None else SpendObserver()
        backend.client.observe(_observer(service, backend))
    routes = routes_of(service)
    routes += plugged_routes(service, routes)
    skips = config.unknown_fields == "ignore"
    routes.append(openapi.route([route.operation for route in routes], skips_unknown=skips))
    routes += [] if more is None else more(service)
    if skips:
        for route in routes:
            route.checks_query = False
    app = _application(service, routes, sockets_of(service))
    add_cors(app, config)
    return app


def _limits(config: GatewayConfig) -> RateLimits:
    return RateLimits(
        config.rate_limit_storage,
        patience=config.rate_limit_timeout,
        fallback=config.rate_limit_fallback,
    )


def _held(config: GatewayConfig, store: Store | None, gateways: int) -> HeldResponses | None:
    """Returns where a gateway holds responses. Several hold none: none knows what another has."""
    kept = store is not None and store.responses is not None
    if kept or gateways > 1 or not config.held_responses_mib:
        return None
    return HeldResponses(config.held_responses_mib << 20)


def _observer(service: Service, backend: ModelBackend) -> Observer:
    """Returns the observer of the requests to a model's engine cores. Limits come first: what they
    refuse is not counted."""
    observers: list[Observer] = []
    if service.limits is not None:
        observers.append(RateLimitObserver(service.limits))
    observers.append(CountingObserver(backend.counts))
    if backend.spend is not None:
        observers.append(backend.spend)
    if service.tracing is not None:
        observers.append(TraceObserver())
    if service.config.access_log != "off":
        observers.append(AccessObserver(lambda: backend.name))
    observers += plugged_loggers(service.config.plugins, lambda: backend.name)
    return Observers(observers)


def create_admin_app(service: Service) -> FastAPI:
    """What the admin port serves, for the gateway that `service` is of."""
    live = [route for route in health.routes(service) if route.operation is health.LIVE]
    return _application(service, [*metrics.admin_routes(service), *live])


def _application(
    service: Service, routes: Iterable[OperationRoute], sockets: Iterable[BaseRoute] = ()
) -> FastAPI:
    listed: list[BaseRoute] = [*routes, *sockets]
    # Its own document and pages are off: they are made of pydantic models, ours of the structs that
    # decode bodies.
    app = FastAPI(
        routes=listed,
        exception_handlers={HTTPException: _routing_error},
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_middleware(
        Access,
        ring=service.ring,
        limits=service.limits,
        names=service.models.names,
        operations=[route.operation for route in routes],
    )
    if service.tracing is not None:
        operations = [route.operation for route in routes]
        app.add_middleware(TraceLayer, tracing=service.tracing, operations=operations)
    app.add_middleware(Boundary, service=service, operations=[route.operation for route in routes])
    if service.config.access_log != "off":
        operations = [route.operation for route in routes]
        app.add_middleware(AccessLog, operations=operations)
    return app


def _methods_at(request: Request) -> set[str]:
    """The methods of all routes at the request's path, none of which takes the request's own."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is Match.PARTIAL:
            found |= getattr(route, "methods", None) or set()
    return found


def _meant_path(path: str, known: set[str]) -> str | None:
    """What a client asks for whose base URL lacks its /v1, or has it twice, or something else
    before it, or a slash too many. known: paths that lead somewhere."""
    steps = [step for step in path[:200].split("/") if step][:MOST_STEPS]
    for begin in range(len(steps)):
        rest = "/".join(steps[begin:])
        for meant in (f"/{rest}", f"/v1/{rest}"):
            if meant in known:
                return meant
    return None


async def _routing_error(request: Request, error: HTTPException) -> NoReturn:
    """404 and 405, which the router raises, for the Boundary, which knows the path's errors."""
    # Not request.url, which is made of what the Host header says.
    path = request.scope["path"]
    headers = tuple((name.lower(), value) for name, value in (error.headers or {}).items())
    if error.status_code == 404:
        near = _meant_path(path, {getattr(route, "path", "") for route in request.app.routes})
        hint = "" if near is None else f"; did you mean {near}?"
        raise HTTPError(404, f"there is no endpoint at {path[:200]}{hint}", code="not_found")
    if error.status_code == 405:
        # The error's own header has the methods of the path's first route alone.
        allowed = ", ".join(sorted(_methods_at(request)))
        raise HTTPError(
            405,
            f"{request.method[:20]} is not allowed at {path[:200]}; allowed: {allowed}",
            code="method_not_allowed",
            headers=(("allow", allowed),),
        )
    raise HTTPError(error.status_code, str(error.detail), headers=headers)
