"""Who may reach a server without API keys: each rule, at each endpoint of the table."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock_gateway.app import create_app
from penstock_gateway.http import own_names
from penstock_gateway.http.boundary import Boundary
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.http.own_names import own_hosts
from penstock_gateway.http.replies import send_json
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ALICE, bearer, key, write

LOOPBACK, REMOTE = ("127.0.0.1", 40_000), ("192.0.2.7", 40_000)
ENGINE = FakeEngineClient()
MACHINE_NAMES = own_names.machine_names


def application(**settings: Any) -> FastAPI:
    return create_app(ENGINE, GatewayConfig(**settings))  # type: ignore[arg-type]


def operations_of(app: FastAPI) -> list[Operation]:
    return [each.operation for each in app.routes if isinstance(each, OperationRoute)]


APP = application()
TABLE = {f"{each.method} {each.path}": each for each in operations_of(APP)}
GUARDED = [name for name, each in TABLE.items() if each.access != "open"]
OPEN = [name for name, each in TABLE.items() if each.access == "open"]
CONTROL = [name for name, each in TABLE.items() if each.access == "admin" and "GET" not in name]
OF_JSON = [
    name
    for name, each in TABLE.items()
    if each.body is not None and each.body_type == "application/json"
]


@pytest.fixture(scope="module", autouse=True)
def box(machine: None) -> Iterator[None]:
    """The machine is called box.lan.example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_names, "machine_names", MACHINE_NAMES)
        patch.setattr(socket, "gethostname", lambda: "Box.lan.example")
        yield


OWN = [
    {},
    {"host": "localhost"},
    {"host": "LocalHost.:8000"},
    {"host": "app.localhost:8000"},
    {"host": "127.8.9.1:8000"},
    {"host": "[::1]:8000"},
    {"host": "[fe80::1%25eth0]:8000"},
    {"host": "192.168.1.20:8000"},
    {"host": "box:8000"},
    {"host": "box.local:8000"},
    {"host": "box.lan.example:8000"},
    {"host": "host.docker.internal:8000"},
    {"host": "localhost:8000", "origin": "http://localhost:8000"},
    {"host": "box.local", "origin": "https://box.local"},
    {"host": "localhost:8000", "origin": "http://localhost:8000", "sec-fetch-site": "same-origin"},
    # Behind a proxy that replaces Host.
    {"host": "box", "origin": "https://llm.example", "sec-fetch-site": "same-origin"},
    {"host": "localhost:8000", "sec-fetch-site": "none"},
    # Installed programs.
    {"host": "localhost:8000", "origin": "vscode-webview://1a2b", "sec-fetch-site": "cross-site"},
    {"host": "localhost:8000", "origin": "tauri://localhost"},
]
EXTENSIONS = [
    {"host": "localhost:8000", "origin": f"{scheme}://abcdef"}
    for scheme in ("chrome-extension", "moz-extension", "safari-web-extension", "extension")
]
FOREIGN_HOSTS = [
    {"host": "evil.example:8000"},
    {"host": "evil.example:8000", "origin": "http://evil.example:8000"},
    # Whoever is in the same network can answer to these.
    {"host": "evil:8000"},
    {"host": "evil:8000", "origin": "http://evil:8000", "sec-fetch-site": "same-origin"},
    {"host": "evil.local", "origin": "http://evil.local"},
    {"host": "evil.internal"},
    {"host": "evil.home.arpa"},
    {"host": "evil.models.svc"},
    {"host": "box.evil.example"},
    {"host": "localhost.evil.example"},
    {"host": "127.0.0.1.nip.example:8000"},
    {"host": "evil.example", "x-forwarded-host": "localhost:8000"},
    {"host": "localhost:8000@evil.example"},
    {"host": "evil.example\\.localhost"},
    {"host": "[evil.example]"},
]
FOREIGN_PAGES = [
    {"host": "localhost:8000", "origin": "https://evil.example"},
    {"host": "localhost:8000", "origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"host": "localhost:8000", "origin": "http://127.0.0.1:8000"},
    {"host": "localhost:8000", "origin": "null"},
    {"host": "localhost:8000", "origin": "file://"},
    {"host": "localhost:8000", "origin": "https://evil.example", "sec-fetch-site": "none"},
    {"host": "localhost:8000", "sec-fetch-site": "cross-site"},
    {"host": "localhost:8000", "sec-fetch-site": "same-site"},
    {"host": "localhost:8000", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate",
     "sec-fetch-dest": "iframe"},
    {"origin": "https://evil.example"},
    {"host": "box", "origin": "https://evil.example", "x-forwarded-host": "evil.example"},
]  # fmt: skip


def shown(headers: dict[str, str]) -> str:
    return ",".join(headers.values()) or "none"


async def ask(
    app: Any, name: str, headers: dict[str, str], peer: tuple[str, int] = LOOPBACK
) -> httpx.Response:
    """One request of the table, without a body."""
    operation = TABLE[name]
    path = operation.template.replace("{", "").replace("}", "")
    transport = httpx.ASGITransport(app, client=peer)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        request = http.build_request(operation.method, path, headers=headers)
        if "host" not in headers:
            del request.headers["host"]
        return await http.send(request)


@pytest.fixture
def let_in() -> Boundary:
    """The layer that refuses, around an application that answers everything: endpoints have work
    of their own."""
    return behind_door(APP)


def behind_door(app: FastAPI) -> Boundary:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, b"{}")

    return Boundary(answer, app.state.service, operations_of(app))


@pytest.mark.parametrize("headers", OWN, ids=shown)
async def test_its_own_users_are_let_in_everywhere(let_in: Boundary, headers: Any) -> None:
    assert {name: (await ask(let_in, name, headers)).status_code for name in TABLE} == (
        dict.fromkeys(TABLE, 200)
    )


@pytest.mark.parametrize("headers", FOREIGN_HOSTS, ids=shown)
async def test_names_of_others_are_refused(headers: Any) -> None:
    for name in GUARDED:
        reply = await ask(APP, name, headers)
        assert (reply.status_code, b"--allowed-hosts" in reply.content) == (403, True), name


@pytest.mark.parametrize("headers", FOREIGN_PAGES, ids=shown)
async def test_pages_of_others_are_refused(headers: Any) -> None:
    for name in GUARDED:
        reply = await ask(APP, name, headers)
        assert (reply.status_code, b"--allowed-origins" in reply.content) == (403, True), name


@pytest.mark.parametrize("headers", [*FOREIGN_HOSTS, *FOREIGN_PAGES], ids=shown)
async def test_what_is_open_is_open_to_all(let_in: Boundary, headers: Any) -> None:
    assert {"GET /health", "GET /"} <= set(OPEN)
    for name in OPEN:
        assert (await ask(let_in, name, headers)).status_code == 200, name


@pytest.mark.parametrize("headers", EXTENSIONS, ids=shown)
async def test_extensions_use_it_and_do_not_control_it(let_in: Boundary, headers: Any) -> None:
    for name in TABLE:
        reply = await ask(let_in, name, headers)
        assert reply.status_code == (403 if name in CONTROL else 200), name
    allowed = behind_door(application(allowed_origins=headers["origin"]))
    assert (await ask(allowed, "POST /pause", headers)).status_code == 200


async def test_links_may_be_followed_but_post_nothing(let_in: Boundary) -> None:
    headers = {"host": "localhost:8000", "sec-fetch-site": "cross-site",
               "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}  # fmt: skip
    for name in GUARDED:
        expected = 200 if name.startswith("GET ") else 403
        assert (await ask(let_in, name, headers)).status_code == expected, name


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain;charset=UTF-8",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "text/plain, application/json",
    ],
)
async def test_bodies_say_that_they_are_json(kind: str) -> None:
    refused = 0
    for name in OF_JSON:
        reply = await ask(APP, name, {"host": "localhost", "content-type": kind})
        if kind.endswith("urlencoded") and "/api/" in name:
            assert reply.status_code == 400, name  # Ollama's users have curl say nothing of it.
        elif reply.status_code != 404:  # Of what is off here.
            assert reply.status_code == 415, name
            refused += 1
            assert b"content-type: application/json" in reply.content
    assert refused > 15


@pytest.mark.parametrize(
    "kind",
    [
        *(None, "application/json", "Application/JSON; charset=utf-8", "application/a+json"),
        *("application/octet-stream", "text/json"),  # LiteLLM's, of Ollama's API; llama.vim's.
    ],
)
async def test_bodies_of_json_are_read(http: httpx.AsyncClient, kind: str | None) -> None:
    headers = {"host": "localhost"} | ({} if kind is None else {"content-type": kind})
    body = json.dumps({"prompt": "Hi"})
    reply = await http.post("/tokenize", content=body, headers=headers)
    assert reply.status_code == 200


async def test_other_machines_use_it_and_do_not_control_it() -> None:
    assert {
        *("POST /pause", "POST /sleep", "POST /collective_rpc", "POST /v1/load_lora_adapter"),
        *("POST /adapters", "DELETE /adapters/{name}"),
    } <= set(CONTROL)
    inside = behind_door(APP)
    for name in TABLE:
        reply = await ask(inside, name, {"host": "box:8000"}, REMOTE)
        assert reply.status_code == (403 if name in CONTROL else 200), name
        if name in CONTROL:
            assert "--allow-remote-control" in reply.text
            # As a socket that takes both families has it.
            mapped = await ask(inside, name, {}, ("::ffff:127.0.0.1", 1))
            assert mapped.status_code == 200
    assert not ENGINE.paused


async def test_the_operator_may_let_other_machines_control_it() -> None:
    inside = behind_door(application(allow_remote_control=True, allow_open=True))
    for name in CONTROL:
        assert (await ask(inside, name, {"host": "box"}, REMOTE)).status_code == 200
        assert (await ask(inside, name, {"host": "a.example"}, REMOTE)).status_code == 403


@pytest.mark.parametrize(
    ("allowed", "own", "foreign"),
    [
        ("llm.example", "llm.example:8000", "a.llm.example"),
        ("a.example, *.llm.example", "b.llm.example", "llm.example"),
        ('[".llm.example"]', "b.c.llm.example", "xllm.example"),
        ("LLM.example", "llm.EXAMPLE", "exa.example"),
    ],
)
def test_names_that_the_operator_allows(allowed: str, own: str, foreign: str) -> None:
    known = own_hosts(GatewayConfig(allowed_hosts=allowed))
    assert known(own.encode())
    assert not known(foreign.encode())


@pytest.mark.parametrize(
    ("host", "full", "own", "foreign"),
    [
        ("box", "box.lan.example", ["box", "box.lan.example", "BOX.local"], ["lan.example"]),
        ("Box.lan.example", "box.lan.example", ["box", "box.lan.example"], ["a.lan.example"]),
        ("box", "localhost", ["box", "localhost"], ["box.example"]),
        ("box", "evil.example", ["box"], ["evil.example", "evil"]),
    ],
)
def test_names_of_the_machine(
    host: str, full: str, own: list[str], foreign: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(own_names, "full_name", lambda host: full)
    known = own_hosts(GatewayConfig())
    assert [each for each in own if not known(each.encode())] == []
    assert [each for each in foreign if known(each.encode())] == []


def test_a_resolver_that_does_not_answer_holds_no_start_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(own_names, "PATIENCE", 0.01)
    monkeypatch.setattr(socket, "getfqdn", lambda host: "late" if answered.wait(60) else "")
    try:
        assert own_names.full_name("nobody.example") == ""
    finally:
        answered.set()
        own_names.full_name.cache_clear()


def test_any_name_may_be_allowed_and_wrong_ones_are_refused() -> None:
    assert own_hosts(GatewayConfig(allowed_hosts="*"))(b"evil.example")
    for wrong in ("http://a.example", "a.example:80", "a..example", "a.*", ""):
        if wrong:
            with pytest.raises(StartupError, match="--allowed-hosts"):
                own_hosts(GatewayConfig(allowed_hosts=wrong))


async def test_a_page_that_is_allowed_is_let_in() -> None:
    inside = behind_door(application(allowed_origins="http://localhost:3000"))
    headers = {"host": "localhost:8000", "origin": "http://localhost:3000"}
    for name in TABLE:
        reply = await ask(inside, name, {**headers, "sec-fetch-site": "same-site"})
        assert reply.status_code == 200
    everybody = behind_door(application(allowed_origins='["*"]'))
    assert (await ask(everybody, "POST /pause", {"origin": "null"})).status_code == 200


async def test_with_keys_a_key_decides(tmp_path: Path) -> None:
    app = application(api_keys=write(tmp_path / "keys.json", key(ALICE)))
    for headers in (*FOREIGN_HOSTS, *FOREIGN_PAGES):
        assert (await ask(app, "GET /version", headers)).status_code == 401
        assert (await ask(app, "GET /version", headers | bearer(ALICE))).status_code == 200
        assert (await ask(app, "POST /pause", headers | bearer(ALICE))).status_code == 403


async def test_errors_have_the_shape_of_their_path() -> None:
    reply = await ask(APP, "POST /api/chat", {"host": "evil.example"})
    assert "evil.example" in reply.json()["error"]
