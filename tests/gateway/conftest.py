from __future__ import annotations

import string
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.http import own_names
from tests.gateway.fake_engine import FakeEngineClient


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    """The machine has the names by which these tests call their servers: a server without keys
    answers to no other one's."""
    called = frozenset(("localhost", "gateway", "admin", *string.ascii_lowercase))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_names, "machine_names", lambda: called)
        yield


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
