"""Who may do what: every route of the application, with every kind of key, however it is spelt."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.routing import WebSocketRoute

import penstock_gateway
from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_admin_app, create_app
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.keys import ring as ring_module
from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.gateway.keyring import ADMIN, ALICE, BOB, OTHER, UNKNOWN, bearer, key, write
from tests.gateway.live_gateway import LiveGateway

METRICS = "sk-metrics-of-prometheus"

pytestmark = pytest.mark.timeout(300)

QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}
WEB = Path(penstock_gateway.__file__).parent / "web"
PAGE = {
    f"/{file.relative_to(WEB).as_posix()}"
    for file in WEB.rglob("*")
    if file.suffix in {".css", ".js", ".svg", ".txt"}
}
OPEN = {"/health", "/health/live", "/health/ready", "/ping", "/docs", "/"} | PAGE
"""All that may be had without a key. Written out here: a route that joins them must change this."""

HOSTS = (
    "gateway",
    "localhost",
    "127.0.0.1",
    "evil.example",
    "health",
    "/health/live",
    "gateway/health/live?",
    "[::1",
    "a, b",
    "x" * 1000,
)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return write(
        tmp_path / "keys.json",
        key(ALICE, tenant="acme", weight=3, max_concurrent=2, highest_priority=-5, models=[MODEL]),
        key(BOB),
        key(OTHER, models=["another/model"]),
        key(ADMIN, admin=True),
    )


@pytest.fixture
def gateway(keys: str) -> Iterator[LiveGateway]:
    with ExitStack() as stack:
        config = GatewayConfig(api_keys=keys)
        yield stack.enter_context(LiveGateway(FakeEngineClient(), config))


def operations() -> list[Operation]:
    """Operations of the application itself: a new route is in the matrix from its first day.
    WebSockets are in tests/system/test_realtime.py."""
    app = create_app(FakeEngineClient(), GatewayConfig())  # type: ignore[arg-type]
    sockets = [route.path for route in app.routes if isinstance(route, WebSocketRoute)]
    assert sockets == ["/v1/realtime"]
    routes = [route for route in app.routes if not isinstance(route, WebSocketRoute)]
    assert all(isinstance(route, OperationRoute) for route in routes)
    return [route.operation for route in routes]


def filled(operation: Operation) -> str:
    """Its path, with the model's name for a parameter."""
    return operation.path.replace("{name:path}", MODEL)


def spellings(path: str) -> list[str]:
    first = path[1:2]
    return [
        path,
        f"/{path}",
        f"{path}/",
        f"{path}/.",
        f"{path}.",
        path.upper(),
        path.title(),
        f"/%{ord(first):02x}{path[2:]}",
        quote(path, safe=""),
        path.replace("/", "%2f"),
        path.replace("/", "\\"),
        f"{path};x=/health/live",
        f"{path}?/health/live",
        f"{path}#/health/live",
        f"{path}%00",
        f"{path}%20",
        f"{path}%3f",
        f"/health/live/..{path}",
        f"/health/live/../..{path}",
        f"/health/live%2f..%2f..{path}",
        f"/health/live/%2e%2e/%2e%2e{path}",
        f"/./{path[1:]}",
        f"/health/live;{path}",
        f"/health/live%3f{path}",
        f"http://gateway{path}",
        f"http://gateway/health/live/..{path}",
        f"//health/live{path}",
        "*",
    ]


def error_type(body: bytes) -> str | None:
    """None for an error of Ollama's shape, which has none."""
    error = json.loads(body)["error"]
    return None if isinstance(error, str) else error["type"]


def ask(
    gateway: LiveGateway, method: str, target: str, host: str = "gateway", *headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request over a connection of its own, as raw bytes; nothing is normalised."""
    body = b"" if method in ("GET", "HEAD") else json.dumps(QUESTION).encode()
    head = [f"{method} {target} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
    head += ["connection: close", *headers]
    with gateway.connect() as connection:
        connection.socket.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        try:
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = connection.read_all()
    top, _, payload = answer.partition(b"\r\n\r\n")
    line, *fields = top.decode().split("\r\n")
    found = dict(field.lower().split(": ", 1) for field in fields)
    return int(line.split()[1]), found, payload


def test_the_open_routes_are_these() -> None:
    assert {each.path for each in operations() if each.access == "open"} == OPEN


@pytest.mark.parametrize("secret", [None, UNKNOWN, "", f"{ALICE}x", ALICE[:-1], ALICE.upper()])
def test_every_route_needs_a_key_that_is_known(gateway: LiveGateway, secret: str | None) -> None:
    headers = () if secret is None else (f"authorization: Bearer {secret}",)
    for operation in operations():
        path = filled(operation)
        for host in HOSTS if path not in PAGE else HOSTS[:1]:
            status, fields, body = ask(gateway, operation.method, path, host, *headers)
            if operation.access == "open":
                assert status in (200, 503)
                continue
            # An answer that a parser gives by itself, to a Host that is none.
            assert status == 401 or (status == 400 and b"invalid_http" in body), (path, host)
            if status == 401:
                assert fields["www-authenticate"].startswith("bearer")
                assert error_type(body) in ("authentication_error", None)
    assert gateway.engine.submitted == []


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"])
def test_no_spelling_of_a_path_goes_round_it(gateway: LiveGateway, method: str) -> None:
    for operation in operations():
        path = filled(operation)
        if path in OPEN:
            continue
        for target in spellings(path):
            status, _, body = ask(gateway, method, target)
            refused = status == 400 and (b"invalid_http" in body or not body)
            assert status == 401 or refused, (method, target, status)
    assert gateway.engine.submitted == []


def test_other_ways_to_bring_a_key_are_none(gateway: LiveGateway) -> None:
    digest = hashlib.sha256(ALICE.encode()).hexdigest()
    for headers in (
        (f"authorization: {ALICE}",),
        (f"authorization: Basic {ALICE}",),
        (f"authorization: Bearer {digest}",),
        (f"authorization: Bearer{ALICE}",),
        (f"authorization: Bearer {ALICE} {ALICE}",),
        (f"authorization: Bearer {UNKNOWN}", f"authorization: Bearer {ALICE}"),
        (f"authorization: Bearer {ALICE}", f"authorization: Bearer {ALICE}"),
        (f"x-api-key: Bearer {ALICE}",),
        (f"x-api-key: {ALICE}", f"x-api-key: {ALICE}"),
        (f"authorization: Bearer {UNKNOWN}", f"x-api-key: {ALICE}"),
        (f"cookie: authorization=Bearer {ALICE}",),
        ("x-forwarded-for: 127.0.0.1", "x-original-url: /health/live", "x-rewrite-url: /health"),
        ("x-http-method-override: OPTIONS", "upgrade: websocket"),
    ):
        assert ask(gateway, "GET", "/v1/models", "gateway", *headers)[0] == 401, headers
    assert ask(gateway, "GET", f"/v1/models?api_key={ALICE}")[0] == 401
    for scheme in ("Bearer ", "bearer ", "BEARER   "):
        assert ask(gateway, "GET", "/v1/models", "g", f"authorization: {scheme}{ALICE}")[0] == 200
    assert ask(gateway, "GET", "/v1/models", "g", f"x-api-key: {ALICE}")[0] == 200


COMPUTES = ("/v1/responses/input_tokens", "/v1/responses/compact")
KEPT = (
    *("/v1/files", "/v1/batches", "/v1/messages/batches"),
    *("/v1/responses/", "/v1/conversations", "/v1/receipts/"),
)
"""What a server without a folder, or a file, for it doesn't have."""


def test_what_a_key_may_not_use_is_a_403(gateway: LiveGateway) -> None:
    """A key for another model: everything that computes is closed, whatever the body says."""
    header = f"authorization: Bearer {OTHER}"
    for operation in operations():
        for host in HOSTS[:4] if filled(operation) not in PAGE else HOSTS[:1]:
            status, _, body = ask(gateway, operation.method, filled(operation), host, header)
            if operation.path.startswith(KEPT) and operation.path not in COMPUTES:
                assert status == 404  # There are none. A batch's lines are asked as its key's.
            elif (
                operation.method == "POST"
                or operation.parameters
                or operation.path
                in ("/info", "/props", "/tokenizer_info")  # They tell of the model itself.
                or operation.access in ("admin", "metrics")
            ):
                assert status == 403, operation.path
                assert error_type(body) in ("permission_error", None)
            else:
                assert status in (200, 503)
    assert json.loads(ask(gateway, "GET", "/v1/models", "g", header)[2])["data"] == []
    assert gateway.engine.submitted == []


def test_metrics_are_not_on_the_main_port(gateway: LiveGateway) -> None:
    for secret, words in ((ALICE, "admin API key"), (ADMIN, "--admin-port")):
        status, _, body = ask(gateway, "GET", "/metrics", "g", f"authorization: Bearer {secret}")
        assert status == 403
        assert words in json.loads(body)["error"]["message"]


async def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def test_the_admin_port_is_the_admins(keys: str) -> None:
    app = create_app(FakeEngineClient(), GatewayConfig(api_keys=keys))  # type: ignore[arg-type]
    async with await client(create_admin_app(app.state.service)) as http:
        for path in ("/metrics", "//metrics", "/metrics/", "/v1/models", "/"):
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers=bearer(UNKNOWN))).status_code == 401
        assert (await http.get("/metrics", headers=bearer(ALICE))).status_code == 403
        reply = await http.get("/metrics", headers=bearer(ADMIN))
        assert reply.status_code == 200
        assert "vllm:num_requests_running" in reply.text
        assert (await http.get("/health/live")).status_code == 200
        assert (await http.get("/v1/models", headers=bearer(ADMIN))).status_code == 404


async def test_the_load_is_for_whoever_watches(tmp_path: Path) -> None:
    """What all tenants together ask is nothing that each of them may see."""
    entries = [key(ALICE), key(ADMIN, admin=True), key(METRICS, metrics=True)]
    config = GatewayConfig(api_keys=write(tmp_path / "keys.json", *entries))
    async with await client(create_app(FakeEngineClient(), config)) as http:  # type: ignore[arg-type]
        reply = await http.get("/load", headers=bearer(ALICE))
        assert (reply.status_code, "`metrics`" in reply.text) == (403, True)
        for secret in (ADMIN, METRICS):
            assert (await http.get("/load", headers=bearer(secret))).json() == {"server_load": 0}


async def test_a_key_for_metrics_opens_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "metrics.key"
    file.write_text(METRICS)
    keys = write(tmp_path / "keys.json", key(ALICE))
    config = GatewayConfig(api_keys=keys, metrics_key_file=str(file))
    engine = FakeEngineClient()
    app = create_app(engine, config)  # type: ignore[arg-type]
    async with await client(create_admin_app(app.state.service)) as http:
        assert (await http.get("/metrics", headers=bearer(METRICS))).status_code == 200
        assert (await http.get("/metrics", headers=bearer(ALICE))).status_code == 403
    async with await client(app) as http:
        for operation in operations():
            reply = await http.request(
                operation.method, operation.template, json={}, headers=bearer(METRICS)
            )
            allowed = operation.access == "open" or operation.path == "/load"
            assert (reply.status_code == 403) == (not allowed), operation.path
    assert engine.submitted == []


async def test_a_known_key_says_whose_request_it_is(keys: str) -> None:
    engine = FakeEngineClient()
    app = create_app(engine, GatewayConfig(api_keys=keys))  # type: ignore[arg-type]
    async with await client(app) as http:
        for secret in (ALICE, BOB):
            reply = await http.post(
                "/v1/chat/completions", json=QUESTION | {"user": "x"}, headers=bearer(secret)
            )
            assert reply.status_code == 200
    alice, bob = engine.terms
    assert alice.tenant == "acme"
    assert (alice.grant.weight, alice.grant.max_requests) == (3, 2)
    assert alice.grant.highest_priority == -5
    assert bob.tenant == hashlib.sha256(BOB.encode()).hexdigest()[:32]
    assert (bob.grant.weight, bob.grant.max_requests) == (1, None)


async def test_an_unknown_key_costs_what_a_known_one_does(
    keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows from how it is made: the same two operations, one digest and one look into one
    table."""
    app = create_app(FakeEngineClient(), GatewayConfig(api_keys=keys))  # type: ignore[arg-type]
    ring = app.state.service.ring
    done: list[str] = []

    class Table(dict[bytes, Any]):
        def get(self, *arguments: Any) -> Any:
            done.append("get")
            return super().get(*arguments)

        def __iter__(self) -> Any:
            raise AssertionError("a key was looked for among all")

        __contains__ = __getitem__ = items = values = __iter__  # type: ignore[assignment]

    def digest(sent: bytes) -> bytes:
        done.append("digest")
        return hashlib.sha256(sent).digest()

    monkeypatch.setattr(ring, "_by_digest", Table(ring._by_digest))
    monkeypatch.setattr(ring_module, "digest_of", digest)
    async with await client(app) as http:
        for headers, status in (
            (bearer(ALICE), 200),
            (bearer(UNKNOWN), 401),
            (bearer("x" * 4000), 401),
            ({}, 401),
        ):
            done.clear()
            assert (await http.get("/version", headers=headers)).status_code == status
            assert done == ["digest", "get"]


async def test_the_file_is_read_again(keys: str) -> None:
    app = create_app(FakeEngineClient(), GatewayConfig(api_keys=keys))  # type: ignore[arg-type]
    ring = app.state.service.ring

    async def status(http: httpx.AsyncClient, secret: str) -> int:
        return (await http.get("/version", headers=bearer(secret))).status_code

    async with await client(app) as http:
        assert [await status(http, s) for s in (ALICE, BOB, UNKNOWN)] == [200, 200, 401]
        write(Path(keys), key(BOB), key(UNKNOWN))
        ring.reload()
        assert [await status(http, s) for s in (ALICE, BOB, UNKNOWN)] == [401, 200, 200]
        for wrong in ("- {name: a}", "{"):
            Path(keys).write_text(wrong)
            ring.reload()
        Path(keys).unlink()
        ring.reload()
        assert [await status(http, s) for s in (ALICE, BOB, UNKNOWN)] == [401, 200, 200]


async def test_a_change_is_noticed(keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(ring_module, "LOOK_EVERY", 0.01)
    ring = ring_module.KeyRing.of(GatewayConfig(api_keys=keys))
    assert ring is not None
    watching = asyncio.create_task(ring.watch())
    write(Path(keys), key(UNKNOWN))
    async with asyncio.timeout(60):
        while len(ring) != 1:
            await asyncio.sleep(0.01)
    watching.cancel()


async def test_without_keys_everybody_may_ask() -> None:
    app = create_app(FakeEngineClient(), GatewayConfig())  # type: ignore[arg-type]
    async with await client(app) as http:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/status"):
            assert (await http.get(path)).status_code == 200


async def test_nobody_can_ask_with_an_empty_file(tmp_path: Path) -> None:
    config = GatewayConfig(api_keys=write(tmp_path / "keys.json"))
    app = create_app(FakeEngineClient(), config)  # type: ignore[arg-type]
    async with await client(app) as http:
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/health/live")).status_code == 200
