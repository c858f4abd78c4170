"""Limits in a real Redis: round trips, and what happens when it is killed, stopped, or empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import redis as client
from limits.aio.storage import RedisStorage
from redis.exceptions import MovedError, ReadOnlyError, ResponseError

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.metrics.families import Families
from penstock_gateway.app import create_app
from penstock_gateway.keys import redis_windows
from penstock_gateway.keys.redis_windows import CONNECTIONS, RedisWindows
from penstock_gateway.keys.shared_windows import CountFailed
from penstock_gateway.keys.windows import MINUTE, LimitCheck
from penstock_gateway.metrics.rate_limits import rate_limit_families
from penstock_gateway.service import Service
from testing.redis_server import RedisServer
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, bearer, key, write

pytestmark = pytest.mark.timeout(120)

BOTH = [LimitCheck("requests/a", 10, 1), LimitCheck("tokens/a", 100, 0)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


class Relay:
    """Passes bytes on between gateway and Redis. turns: how often a client spoke after it was
    answered, or for the first time: round trips."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.turns = 0
        self.late = 0.0
        """Seconds until a new connection is passed on."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.late)
        to_server = await asyncio.open_connection("127.0.0.1", self._port)
        spoken = False

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool) -> None:
            nonlocal spoken
            while data := await source.read(1 << 16):
                self.turns += up and not spoken
                spoken = up
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, to_server[1], True), pump(to_server[0], writer, False))


async def test_all_limits_of_a_request_take_one_round_trip(server: RedisServer) -> None:
    relay = Relay(server.port)
    async with relay.open() as url:
        storage = RedisWindows(url, 30.0)
        await storage.check(BOTH)  # Opens the connection, and loads the scripts.
        before = relay.turns
        for used in (2, 3):
            requests, tokens = await storage.check(BOTH)
            assert (requests.window.used, tokens.window.used) == (used, 0)
        await storage.add({"tokens/a": 5, "tokens/b": 6})
        assert relay.turns == before + 3
        await storage.close()


async def test_requests_at_once_share_round_trips(server: RedisServer) -> None:
    relay = Relay(server.port)
    async with relay.open() as url:
        storage = RedisWindows(url, 30.0)
        await storage.check(BOTH)
        before = relay.turns
        checks = [[LimitCheck(f"requests/{n % 7}", 1000, 1)] for n in range(200)]
        states = await asyncio.gather(*map(storage.check, checks))
        assert relay.turns == before + 1
        last = {check[0].name: state[0].window.used for check, state in zip(checks, states)}  # noqa: B905
        assert sum(last.values()) == 200
        assert len(client.Redis.from_url(server.url).client_list()) <= CONNECTIONS + 1
        await storage.close()


async def test_they_are_the_windows_of_the_library(server: RedisServer) -> None:
    """Other gateways of an earlier version count in the same keys."""
    storage = RedisWindows(server.url, 30.0)
    library = RedisStorage(f"async+{server.url}", implementation="redispy", key_prefix="PENSTOCK")
    assert await library.acquire_sliding_window_entry("requests/a", 10, MINUTE, 4)
    (state, _) = await storage.check(BOTH)
    assert (state.allowed, state.window.now) == (True, 5)
    assert (await library.get_sliding_window("requests/a", MINUTE))[2] == 5
    assert not await library.acquire_sliding_window_entry("requests/a", 10, MINUTE, 6)
    await storage.close()


async def test_scripts_that_redis_forgot_are_sent_again(server: RedisServer) -> None:
    storage = RedisWindows(server.url, 30.0)
    await storage.check(BOTH)
    client.Redis.from_url(server.url).script_flush()
    states = await asyncio.gather(*(storage.check(BOTH) for _ in range(4)))
    assert max(state[0].window.used for state in states) == 5
    assert storage.client.failures == 0
    await storage.close()


async def test_an_answer_that_comes_too_late_is_nobodys(server: RedisServer) -> None:
    storage = RedisWindows(server.url, 0.2)
    await storage.check(BOTH)
    server.hang()
    for name in ("requests/x", "requests/y"):
        with pytest.raises(TimeoutError):
            await storage.check([LimitCheck(name, 10, 1)])
    assert storage.client.failures == 2
    server.go_on()
    async with asyncio.timeout(60):
        while True:
            try:
                states = await storage.check([LimitCheck("requests/a", 10, 1)])
                break
            except Exception:
                await asyncio.sleep(0.01)
    assert states[0].window.used == 2
    await storage.close()


async def test_a_connection_may_take_longer_than_an_answer(server: RedisServer) -> None:
    relay = Relay(server.port)
    relay.late = 0.3
    async with relay.open() as url:
        storage = RedisWindows(url, 0.1)
        async with asyncio.timeout(30):
            while True:
                try:
                    await storage.check(BOTH)
                    break
                except Exception:
                    await asyncio.sleep(0.01)
        await storage.close()


def test_no_bound_but_its_own_ends_an_answer() -> None:
    storage = RedisWindows("redis://127.0.0.1:1/0", 30.0)
    pool = storage.client.connection_pool
    connection = pool.connection_class(**pool.connection_kwargs)
    assert connection.socket_timeout is None
    assert connection.socket_connect_timeout == 30.0


async def test_a_key_of_another_type_is_that_keys_error(server: RedisServer) -> None:
    storage = RedisWindows(server.url, 30.0)
    await storage.check(BOTH)
    other = client.Redis.from_url(server.url)
    keys = [each.decode() for each in other.keys("*")]
    (mine,) = (each for each in keys if "requests/a" in each)
    wrong = mine.replace("requests/a", "requests/b")
    other.rpush(wrong, "no number")
    errors = await storage.add({"requests/a": 1, "requests/b": 1})
    assert set(errors) == {"requests/b"}
    assert isinstance(errors["requests/b"], CountFailed)
    with pytest.raises(CountFailed, match="error for its key"):
        await storage.check([LimitCheck("requests/b", 10, 1)])
    assert (await storage.check(BOTH))[0].window.used == 3
    await storage.close()


@pytest.mark.parametrize(
    ("error", "is_counts", "says"),
    [
        (MovedError("3999 127.0.0.1:6381"), True, "cluster, which isn't supported"),
        (ResponseError("WRONGTYPE Operation against a key"), True, "WRONGTYPE"),
        (ResponseError("MISCONF Redis is configured to save"), False, "MISCONF"),
        (ReadOnlyError("You can't write"), False, "write"),
        (client.ConnectionError("gone"), False, "gone"),
    ],
)
def test_whose_error_it_is(error: Exception, is_counts: bool, says: str) -> None:
    told = redis_windows._error(error)
    assert isinstance(told, CountFailed) == is_counts
    assert says in str(told)


@pytest.mark.parametrize("uri", ["redis://user:secret@host", "redis://a:b:c/0"])
def test_an_address_that_is_none_is_named_when_it_starts(uri: str) -> None:
    with pytest.raises(StartupError, match=r"--rate-limit-storage.*HOST:PORT") as refused:
        RedisWindows(uri, 1.0)
    assert "secret" not in str(refused.value)


@asynccontextmanager
async def gateway(
    tmp_path: Path, server: RedisServer, engine: FakeEngineClient, **more: object
) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    keys = [key(ALICE, requests_per_minute=3, tokens_per_minute=100), key(BOB)]
    config = GatewayConfig(
        api_keys=write(tmp_path / "k.json", *keys),
        rate_limit_storage=server.url,
        **more,  # type: ignore[arg-type]
    )
    app = create_app(engine, config)  # type: ignore[arg-type]
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
    async with http:
        yield http, app.state.service
    await app.state.service.leave()


async def post(http: httpx.AsyncClient, secret: str = ALICE) -> httpx.Response:
    body = {"prompt": "0123456789", "max_tokens": 5}
    return await http.post("/v1/completions", json=body, headers=bearer(secret))


def shown(service: Service) -> dict[str, float]:
    """What /metrics has of the storage, by name."""
    families = rate_limit_families(service.limits, Families(""))
    return {sample.name: sample.value for each in families for sample in each.samples}


async def until_back(service: Service) -> None:
    assert service.limits is not None
    assert service.limits.shared is not None
    async with asyncio.timeout(60):
        while service.limits.shared.down or service.limits.shared.uncounted:
            await asyncio.sleep(0.01)


async def test_refused_while_it_is_dead_and_counted_when_it_is_back(
    tmp_path: Path, server: RedisServer, engine: FakeEngineClient
) -> None:
    engine.script = say("ab")
    async with gateway(tmp_path, server, engine) as (http, service):
        assert (await post(http)).status_code == 200
        await until_back(service)
        server.kill()
        for _ in range(3):
            refused = await post(http)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "rate_limits_unavailable"
        assert (await post(http, BOB)).status_code == 200
        told = shown(service)
        assert told["penstock:rate_limit_fallback_active"] == 1
        assert told["penstock:rate_limit_storage_failures_total"] >= 1
        assert told["penstock:rate_limit_storage_seconds_count"] >= 2
        server.start()
        await until_back(service)
        assert shown(service)["penstock:rate_limit_fallback_active"] == 0
        answer = await post(http)
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-remaining-requests"] == "2", "it kept nothing"


async def test_counted_in_the_process_while_it_is_dead(
    tmp_path: Path, server: RedisServer, engine: FakeEngineClient
) -> None:
    async with gateway(tmp_path, server, engine, rate_limit_fallback="local") as (http, service):
        assert (await post(http)).headers["x-ratelimit-remaining-requests"] == "2"
        server.kill()
        for left in ("1", "0"):
            answer = await post(http)
            assert (answer.status_code, answer.headers["x-ratelimit-remaining-requests"]) == (
                200,
                left,
            )
        refused = await post(http)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        server.start()
        await until_back(service)
        looked = await http.get("/v1/models", headers=bearer(ALICE))
        assert looked.headers["x-ratelimit-remaining-requests"] == "1", "two were counted meanwhile"
