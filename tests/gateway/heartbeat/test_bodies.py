"""Whatever the body of whichever endpoint is full of, the event loop stands still for no more than
50 ms: others' streams go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from msgspec import inspect

from penstock.config.settings import GatewayConfig, StorageSettings
from penstock_gateway.app import create_app
from penstock_gateway.http.openapi import example_of
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.storage.store import Store
from tests import thinning
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.heartbeat.beaten import BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.bodies import LONG, Case, cases_of, is_struct, minimal
from tests.gateway.heartbeat.engines import GeneratingEngine, PoolingEngine

pytestmark = pytest.mark.timeout(1800)

OPERATIONS: dict[str, Operation] = {
    route.operation.path: route.operation
    for route in create_app(FakeEngineClient(), GatewayConfig()).routes  # type: ignore[arg-type]
    if isinstance(route, OperationRoute)
    and is_struct(route.operation.body)
    and route.operation.body_type == "application/json"
}
SMALL = 2000
"""Bytes below which nothing is large."""
STEP = 16
"""How many times less is tried where so much is refused."""
TEXTS = ("prompt", "input")
CASES = 1
"""Cases of an endpoint, without --long."""
CUT = "truncate_prompt_tokens"
"""The field that has texts cut; Ollama's are cut without one."""


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BeatenGateway]]:
    """Gateways by what their model does."""
    folder = str(tmp_path_factory.mktemp("store"))
    store = Store(StorageSettings(data_dir=folder, stored_response_hours=1), folder)
    engines = {
        "generate": GeneratingEngine(),
        "embed": PoolingEngine(),
        "classify": PoolingEngine("good", "bad"),
    }
    with collecting_as_a_gateway(), ExitStack() as stack:
        stack.callback(store.close)
        yield {name: stack.enter_context(beaten(e, store)) for name, e in engines.items()}


def model_for(operation: Operation) -> str:
    if operation.tag != "pooling":
        return "generate"
    return "classify" if operation.path == "/classify" else "embed"


def cases(operation: Operation) -> list[Case]:
    example = example_of(operation) or minimal(inspect.type_info(operation.body))
    found = list(cases_of(operation.body, example))
    if CUT in operation.body.__struct_fields__:
        found += [
            replace(case, field=f"{case.field}, cut")
            for case in cases_of(operation.body, {**example, CUT: -1})
            if case.field in TEXTS
        ]
    if thinning.every:
        return found
    shift = list(OPERATIONS).index(operation.path) / len(OPERATIONS)
    by_chance = sorted(found, key=lambda case: (shift + found.index(case) * thinning.GOLDEN) % 1)
    return by_chance[:CASES]


@pytest.mark.parametrize("path", OPERATIONS)
def test_a_body_full_of_anything(gateways: dict[str, BeatenGateway], path: str) -> None:
    operation = OPERATIONS[path]
    gateway = gateways[model_for(operation)]
    late = [told for case in cases(operation) for told in told_of(gateway, path, case)]
    assert not late, "\n".join(late)


def told_of(gateway: BeatenGateway, path: str, case: Case) -> Iterator[str]:
    """The largest body, and where it is refused also the largest that isn't, or nearly: what came
    late."""
    size = LONG
    while size > SMALL:
        body = case.body(size)
        begun = time.monotonic()
        status, late = gateway.watched(lambda body=body: gateway.post(path, body))  # type: ignore[misc]
        if late > latest():
            yield (
                f"{case.field} of {case.fill}, {len(body)} bytes, {status}: "
                f"{1000 * late:.0f} ms late, after {time.monotonic() - begun:.1f} s"
            )
        if status < 400:
            return
        size //= STEP
