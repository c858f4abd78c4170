"""Requests and tokens a minute, in memory and in a real Redis."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.keys import windows
from penstock_gateway.keys.windows import MINUTE, Window
from testing.redis_server import RedisServer
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, OTHER, bearer, key, write

pytestmark = pytest.mark.timeout(300)

HEADERS = {
    f"x-ratelimit-{part}-{what}"
    for part in ("limit", "remaining", "reset")
    for what in ("requests", "tokens")
}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a redis-server of our own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server.url
    server.kill()


@pytest.fixture(params=["memory", "redis"])
def storage(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory"
    import redis as client

    uri = request.getfixturevalue("redis")
    client.Redis.from_url(uri).flushall()
    return str(uri)


@pytest.fixture
def config(tmp_path: Path, storage: str) -> GatewayConfig:
    keys = write(
        tmp_path / "keys.json",
        key(ALICE, requests_per_minute=3),
        key(BOB, tokens_per_minute=40),
        key(OTHER),
    )
    return GatewayConfig(api_keys=keys, rate_limit_storage=storage)


@pytest.fixture
async def http(
    config: GatewayConfig, engine: FakeEngineClient, early_in_a_minute: None
) -> AsyncIterator[httpx.AsyncClient]:
    async with client(engine, config) as http:
        yield http


@pytest.fixture
def early_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's minutes begin with the clock's: what is counted here must not be cut in two."""
    passed = time.monotonic() % MINUTE
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() - passed)
    monkeypatch.setattr(windows, "time", clock)


def client(engine: FakeEngineClient, config: GatewayConfig) -> httpx.AsyncClient:
    app = create_app(engine, config)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def post(http: httpx.AsyncClient, secret: str, **fields: Any) -> httpx.Response:
    body = {"prompt": "0123456789", "max_tokens": 5, **fields}
    return await http.post("/v1/completions", json=body, headers=bearer(secret))


def seconds_of(reset: str) -> int:
    """Seconds of a time like 1m5s."""
    minutes, _, seconds = reset.removesuffix("s").rpartition("m")
    return MINUTE * int(minutes or 0) + int(seconds)


async def test_requests_a_minute(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    for left in (2, 1, 0):
        reply = await post(http, ALICE)
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "3"
        assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
        assert reply.headers["x-ratelimit-reset-requests"].endswith("s")
    refused = await post(http, ALICE)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 2 * MINUTE
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert seconds_of(refused.headers["x-ratelimit-reset-requests"]) == int(
        refused.headers["retry-after"]
    ), "clients read the one or the other"
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "3 requests per minute" in error["message"]
    assert len(engine.submitted) == 3
    # Looking costs nothing, and says how it stands; others are not concerned.
    looked = await http.get("/v1/models", headers=bearer(ALICE))
    assert (looked.status_code, looked.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    other = await post(http, OTHER)
    assert other.status_code == 200
    assert not HEADERS & set(other.headers)


async def test_keys_with_the_same_limits_have_a_count_each(
    tmp_path: Path, storage: str, engine: FakeEngineClient, early_in_a_minute: None
) -> None:
    keys = [key(name, requests_per_minute=2, tokens_per_minute=40) for name in (ALICE, BOB)]
    path = write(tmp_path / "same.json", *keys)
    config = GatewayConfig(api_keys=path, rate_limit_storage=storage)
    async with client(engine, config) as http:
        for secret in (ALICE, BOB):
            assert [(await post(http, secret)).status_code for _ in range(3)] == [200, 200, 429]


async def test_a_request_that_is_refused_for_its_body_counts(http: httpx.AsyncClient) -> None:
    for left in ("2", "1", "0"):
        wrong = await post(http, ALICE, temperature=-1)
        assert (wrong.status_code, wrong.headers["x-ratelimit-remaining-requests"]) == (400, left)
    assert (await post(http, ALICE)).status_code == 429


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_a_minute(
    http: httpx.AsyncClient, engine: FakeEngineClient, stream: bool
) -> None:
    """10 of the prompt before, 4 of the answer (three bytes and the end) afterwards."""
    engine.script = say("ab")
    left = 40
    for _ in range(2):
        reply = await post(http, BOB, stream=stream)
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-tokens"] == "40"
        assert reply.headers["x-ratelimit-remaining-tokens"] == str(left - 10)
        left -= 14
        await remaining(http, BOB, left)
    assert (await post(http, BOB, stream=stream)).status_code == 200  # 12 - 10, then 2 beyond it
    await remaining(http, BOB, 0)
    refused = await post(http, BOB, stream=stream)
    assert refused.status_code == 429
    assert "tokens per minute" in refused.json()["error"]["message"]
    assert len(engine.submitted) == 3


async def remaining(http: httpx.AsyncClient, secret: str, tokens: int) -> None:
    """Waits until the output is counted: that is done in the background."""
    async with asyncio.timeout(20):
        while True:
            reply = await http.get("/version", headers=bearer(secret))
            if reply.headers["x-ratelimit-remaining-tokens"] == str(tokens):
                return
            await asyncio.sleep(0.01)


async def test_a_prompt_that_never_fits(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    refused = await post(http, BOB, prompt="x" * 41)
    assert refused.status_code == 429
    assert "41 tokens" in refused.json()["error"]["message"]
    assert engine.submitted == []
    assert (await post(http, BOB)).status_code == 200


async def test_an_answer_that_is_broken_off_is_paid_for(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = lambda prompt, params: iter(
        [
            [SequenceDelta(index=0, text="abc", token_ids=[97, 98, 99])],
            [SequenceDelta(index=0, finish_reason="error", error="broke")],
        ]
    )
    assert (await post(http, BOB)).status_code == 500
    await remaining(http, BOB, 40 - 10 - 3)


@pytest.mark.parametrize("storage", ["redis"], indirect=True)
async def test_several_gateways_count_together_in_redis(config: GatewayConfig) -> None:
    async with (
        client(FakeEngineClient(), config) as one,
        client(FakeEngineClient(), config) as two,
    ):
        statuses = [(await post(http, ALICE)).status_code for http in (one, two, one, two, one)]
    assert statuses == [200, 200, 200, 429, 429]


@pytest.mark.parametrize("storage", ["memory"], indirect=True)
@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_clock_that_is_set_gives_nobody_another_minute(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """Nor does it take one away an hour later, when it comes to that minute again."""
    for status in (200, 200, 200, 429):
        assert (await post(http, ALICE)).status_code == status
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    assert (await post(http, ALICE)).status_code == 429


async def test_requests_at_once_do_not_slip_through(http: httpx.AsyncClient) -> None:
    replies = await asyncio.gather(*(post(http, ALICE) for _ in range(20)))
    assert sorted(reply.status_code for reply in replies) == [200] * 3 + [429] * 17


async def test_a_dead_redis_is_a_503(tmp_path: Path, engine: FakeEngineClient) -> None:
    """Closed and not open: a limit is a promise to the others."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # It doesn't listen.
        config = GatewayConfig(
            api_keys=write(tmp_path / "k.json", key(ALICE, requests_per_minute=3), key(BOB)),
            rate_limit_storage=f"redis://127.0.0.1:{taken.getsockname()[1]}/0",
        )
        async with client(engine, config) as http:
            refused = await post(http, ALICE)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "rate_limits_unavailable"
            assert (await post(http, BOB)).status_code == 200
    assert len(engine.submitted) == 1


async def test_a_redis_that_hangs_holds_up_nobody_else(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """It takes connections and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = GatewayConfig(
            api_keys=write(tmp_path / "k.json", key(ALICE, requests_per_minute=3), key(BOB)),
            rate_limit_storage=f"redis://127.0.0.1:{silent.getsockname()[1]}/0",
            rate_limit_timeout=4.0,
        )
        async with client(engine, config) as http:
            waiting = asyncio.create_task(post(http, ALICE))
            silent.setblocking(False)
            async with asyncio.timeout(60):
                connection, _ = await asyncio.get_running_loop().sock_accept(silent)
            with connection:
                assert (await post(http, BOB)).status_code == 200
                assert not waiting.done()
                assert (await waiting).status_code == 503


@pytest.mark.parametrize(
    ("window", "limit", "seconds"),
    [
        (Window(0, 0, 0, 60), 10, 0),
        (Window(0, 0, 10, 20), 10, 0),
        (Window(60, 30, 0, 30), 20, 10),  # 30 still count, one less each second
        (Window(0, 0, 20, 20), 10, 20 + 30),  # 20 s from now they begin to count less
        (Window(0, 0, 20, 20), 0, 20 + 60),
    ],
)
def test_when_there_is_room_again(window: Window, limit: int, seconds: float) -> None:
    assert window.seconds_until(limit) == pytest.approx(seconds)


@pytest.mark.parametrize("before", [0, 7, 50])
@pytest.mark.parametrize("now", [0, 3, 40])
@pytest.mark.parametrize("left", [1.0, 30.0, 59.0])
def test_that_is_the_first_moment_with_room(before: int, now: int, left: float) -> None:
    """Against the clock moved on by hundredths of a second."""
    window, limit = Window(before, left if before else 0.0, now, left), 10

    def used_after(seconds: float) -> float:
        if seconds < left:
            return before * (left - seconds) / MINUTE + now
        return now * max(0.0, MINUTE + left - seconds) / MINUTE

    steps = (step / 100 for step in range(13_000))
    first = next(seconds for seconds in steps if used_after(seconds) <= limit)
    assert window.seconds_until(limit) == pytest.approx(first, abs=0.02)
