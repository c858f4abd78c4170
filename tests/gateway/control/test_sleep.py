"""POST /sleep and /wake_up, GET /is_sleeping: shapes, errors, keys."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ALICE, bearer, key, write


async def test_sleep_and_wake(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await http.post("/sleep")).json() == {"status": "asleep"}
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await http.post("/wake_up?tags=weights")).json() == {"status": "waking"}
    assert (await http.post("/wake_up?tags=weights&tags=kv_cache")).json() == {"status": "awake"}
    assert (await http.post("/sleep?level=2&mode=keep")).status_code == 200
    assert (await http.post("/wake_up")).json() == {"status": "awake"}
    assert engine.sleeps == [(1, True), (2, False)]
    assert engine.wakes == [["weights"], ["weights", "kv_cache"], []]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sleep?level=3", "level is 3; allowed: 1, 2"),
        ("sleep?level=0", "a pause does no more than that"),
        ("sleep?mode=wait", 'mode is "wait"; allowed: abort, keep'),
        ("sleep?tags=weights", 'unknown parameter "tags"; allowed: level, mode, model'),
        ("wake_up?tags=scheduling", "allowed: weights, kv_cache"),
        ("wake_up?model=other", "other"),
    ],
)
async def test_what_is_wrong(
    http: httpx.AsyncClient, engine: FakeEngineClient, query: str, says: str
) -> None:
    reply = await http.post(f"/{query}")
    assert reply.status_code == (404 if "other" in query else 400)
    assert says in reply.json()["error"]["message"]
    assert engine.sleeps == engine.wakes == []


async def test_sleep_wants_an_admins_key(tmp_path: Path) -> None:
    engine = FakeEngineClient()
    config = GatewayConfig(api_keys=write(tmp_path / "keys.json", key(ALICE)))
    transport = httpx.ASGITransport(create_app(engine, config))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")):
            assert (await http.request(method, path)).status_code == 401
            asked = await http.request(method, path, headers=bearer(ALICE))
            assert asked.status_code == 403
    assert engine.sleeps == engine.wakes == []
