from __future__ import annotations

import string
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.generate import endpoint as generate_endpoint
from penstock_gateway.http import own_names
from penstock_gateway.preparing.pool import Preparers
from penstock_gateway.request import endpoint as request_endpoint
from tests.gateway.fake_engine import FakeEngineClient


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    """The machine has the names by which these tests call their servers: a server without keys
    answers to no other one's."""
    called = frozenset(("localhost", "gateway", "admin", *string.ascii_lowercase))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_names, "machine_names", lambda: called)
        yield


@pytest.fixture(autouse=True)
def preparers_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests of applications without a server leave no processes behind."""
    made: weakref.WeakSet[Preparers] = weakref.WeakSet()
    begin = Preparers.__init__

    def noted(self: Preparers, *parts: Any) -> None:
        begin(self, *parts)
        made.add(self)

    monkeypatch.setattr(Preparers, "__init__", noted)
    yield
    for each in made:
        each.close()


@pytest.fixture
def prepared_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways prepare all bodies themselves, for tests that look at what is done meanwhile."""
    for module in (request_endpoint, generate_endpoint):
        monkeypatch.setattr(module, "is_small", lambda body: True)


@pytest.fixture
def engine() -> FakeEngineClient:
    return FakeEngineClient()


@pytest.fixture
async def http(engine: FakeEngineClient) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of a gateway over `engine`, without sockets."""
    app = create_app(engine, GatewayConfig(max_body_bytes=200_000))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client
