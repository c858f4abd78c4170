"""Every service: its routes in the application, and its handlers outside."""

from __future__ import annotations

from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.rpc import health, openai, reflection
from penstock_gateway.rpc.calls import Calls
from penstock_gateway.rpc.kserve import service as kserve
from penstock_gateway.rpc.kserve import state
from penstock_gateway.rpc.methods import Handlers
from penstock_gateway.rpc.running import RunningCalls
from penstock_gateway.rpc.vllm import control, generate
from penstock_gateway.rpc.vllm import service as vllm
from penstock_gateway.service import Service

SERVED = (
    vllm.INFERENCE.full_name,
    vllm.CONTROL.full_name,
    openai.OPENAI.full_name,
    kserve.KSERVE.full_name,
)


def routes_of(service: Service, running: RunningCalls) -> list[OperationRoute]:
    """What the application answers beside the HTTP API."""
    return [
        *generate.routes(service),
        *control.routes(service, running),
        *state.routes(service),
    ]


def handlers_of(calls: Calls) -> Handlers:
    """Handlers of all services, by the methods' paths."""
    return {
        **vllm.handlers(calls),
        **openai.handlers(calls),
        **kserve.handlers(calls),
        **health.handlers(calls, SERVED),
        **reflection.handlers((*SERVED, health.NAME, *reflection.NAMES), calls.service),
    }


def open_methods(service: Service) -> frozenset[str]:
    """Paths of methods that need no key."""
    routes = state.routes(service)
    return frozenset(
        {
            f"/{health.NAME}/Check",
            f"/{health.NAME}/Watch",
            *reflection.METHODS,
            *(route.path for route in routes if route.operation.access == "open"),
        }
    )
