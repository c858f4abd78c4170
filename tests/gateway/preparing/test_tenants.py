"""Bodies of one tenant that wait for something else, or whose clients leave, keep nobody waiting:
no other tenant, and not the tenant's next body."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from penstock.client.pool_request import PoolResult
from penstock.config.settings import GatewayConfig
from penstock.process.isolated import Stalled
from penstock_gateway.preparing import pool
from penstock_gateway.preparing.exchange import BodyExchange
from penstock_gateway.preparing.pool import Preparers
from tests.gateway.heartbeat.engines import PoolingEngine
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(120)

TEXTS = [f"{place:090d}" for place in range(100)]
"""Inputs that together are more than the gateway prepares itself."""
MOST = 4
"""Processes here."""


class HeldEngine(PoolingEngine):
    """Computes vectors once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.may = threading.Event()

    async def pool(self, *given: Any, **named: Any) -> PoolResult:
        self.asked += 1
        while not self.may.is_set():
            await asyncio.sleep(0.01)
        return await super().pool(*given, **named)


class HeldGateway:
    """A gateway over a HeldEngine."""

    def __init__(self) -> None:
        self.engine = HeldEngine()
        self.live = LiveGateway(self.engine, GatewayConfig())

    def embed(self, tenant: str) -> httpx.Response:
        return self._post("/v1/embeddings", {"input": TEXTS}, tenant)

    def tokenize(self, tenant: str) -> httpx.Response:
        return self._post("/tokenize", {"prompt": "".join(TEXTS)}, tenant)

    def _post(self, path: str, body: dict[str, Any], tenant: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {tenant}"}
        return httpx.post(f"{self.live.url}{path}", json=body, headers=headers, timeout=20)

    def wait_for_asks(self, count: int) -> None:
        self.wait_until(lambda: self.engine.asked >= count)

    def wait_until(self, state: Callable[[], bool]) -> None:
        while not state():
            threading.Event().wait(0.01)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldGateway]:
    monkeypatch.setattr(pool, "MOST", MOST)
    gateway = HeldGateway()
    with gateway.live:
        yield gateway
        gateway.engine.may.set()


def test_clients_that_leave_take_their_turns_along(held: HeldGateway) -> None:
    body = json.dumps({"input": TEXTS}).encode()
    for tenant in ("one", "two", "three"):
        asked = held.engine.asked
        with held.live.connect() as connection:
            headers = ("content-type: application/json", f"authorization: Bearer {tenant}")
            connection.post("/v1/embeddings", body, *headers)
            held.wait_for_asks(asked + 1)
    for tenant in ("one", "another"):
        assert held.tokenize(tenant).status_code == 200


def test_a_body_whose_client_leaves_waits_no_longer(held: HeldGateway) -> None:
    """It may have 32 MiB, and its tenant's turn may come late."""
    preparers = held.live.service.preparers

    def waiting() -> int:
        places = preparers._turns._waiting.get("", ())
        return sum(not place.done() for place in list(places))

    turn = preparers.turn("")
    asyncio.run_coroutine_threadsafe(turn.enter(), held.live.loop).result(20)
    with held.live.connect() as connection:
        body = json.dumps({"prompt": TEXTS}).encode()
        connection.post("/v1/completions", body, "content-type: application/json")
        held.wait_until(lambda: waiting() == 1)
    held.wait_until(lambda: not waiting())


def test_bodies_that_wait_leave_places_to_other_tenants(held: HeldGateway) -> None:
    """As many of one tenant's as there are processes wait for vectors."""
    with ThreadPoolExecutor(2 * MOST) as threads:
        waiting = [threads.submit(held.embed, "hog") for _ in range(2 * MOST)]
        held.wait_for_asks(1)
        held.live.turn()
        others = [held.tokenize(tenant) for tenant in ("one", "two")]
        assert [other.status_code for other in others] == [200, 200]
        assert not any(each.done() for each in waiting)
        held.engine.may.set()
        assert [each.result().status_code for each in waiting] == [200] * len(waiting)


async def test_a_body_that_is_left_while_it_is_weighed_ends_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preparers = Preparers(lambda: ())
    service: Any = SimpleNamespace(preparers=preparers, config=GatewayConfig())
    exchange = BodyExchange(service, "somebody", b"{}")
    weighed = asyncio.Event()

    async def too_dear() -> None:
        raise Stalled

    async def weigh(*given: Any) -> None:
        await exchange._turn.enter()
        weighed.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(exchange, "ask", weigh)
    work = asyncio.create_task(exchange.bravely(too_dear))
    await weighed.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    async with asyncio.timeout(5):
        await preparers.turn("somebody").enter()
