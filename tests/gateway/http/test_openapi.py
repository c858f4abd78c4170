"""The OpenAPI document: every route is in it, and what it says of statuses and bodies is so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import WebSocketRoute

from penstock.config.settings import GatewayConfig
from penstock.errors import EngineUnavailable, Limited, Overloaded, RequestFailed
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import MODEL, FakeEngineClient

KEPT = (
    *("/v1/files", "/v1/batches", "/v1/messages/batches"),
    *("/v1/responses/", "/v1/conversations"),
)
"""Paths of what outlives a process, which a server without a folder for it doesn't have."""
COMPUTES = ("/v1/responses/input_tokens", "/v1/responses/compact")
QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def document(http: httpx.AsyncClient) -> Any:
    return (await http.get("/openapi.json")).json()


async def test_every_route_is_described(document: Any, engine: FakeEngineClient) -> None:
    app = create_app(engine, GatewayConfig())  # type: ignore[arg-type]
    routes = {
        (re.sub(r":\w+\}", "}", route.path), method.lower())
        for route in app.routes
        if not isinstance(route, WebSocketRoute)
        # The files that the page is made of are no part of the API.
        if not re.fullmatch(r"/[A-Za-z/.-]+\.(css|js|svg|txt)", route.path)
        for method in route.methods
        if method != "HEAD"
    }
    told = {(path, method) for path, item in document["paths"].items() for method in item}
    assert told == routes
    assert document["openapi"].startswith("3.1")


async def test_ids_are_unique_and_references_lead_somewhere(document: Any) -> None:
    operations = [op for item in document["paths"].values() for op in item.values()]
    ids = [op["operationId"] for op in operations]
    assert len(set(ids)) == len(ids)
    assert all(op["summary"] and op["tags"] for op in operations)
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert name in document["components"]["schemas"]
    for path, item in document["paths"].items():
        for op in item.values():
            in_path = {p["name"] for p in op["parameters"] if p["in"] == "path"}
            assert in_path == set(re.findall(r"\{(\w+)\}", path))


async def test_streams_have_the_media_type_that_is_said(
    document: Any, http: httpx.AsyncClient
) -> None:
    asked = {"/api/chat": QUESTION, "/v1/messages": {**QUESTION, "max_tokens": 9}}
    for path, body in asked.items():
        reply = await http.post(path, json={**body, "stream": True})
        kinds = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert reply.headers["content-type"].partition(";")[0] in kinds


async def test_keys_are_described(document: Any) -> None:
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, item in document["paths"].items():
        for method, op in item.items():
            closed = not path.startswith("/health") and path not in ("/ping", "/docs")
            closed = closed and (method, path) != ("get", "/")
            assert bool(op["security"]) == closed
            assert ({"401", "403"} <= set(op["responses"])) == closed


@pytest.mark.parametrize(
    ("failure", "fields", "status"),
    [
        (None, {}, 200),
        (None, {"temperature": -1}, 400),
        (None, {"model": "gpt-4"}, 404),
        (None, {"user": "x" * 300_000}, 413),
        (Limited("x", retry_after=1), {}, 429),
        (RequestFailed("x"), {}, 500),
        (Overloaded("x", retry_after=1), {}, 503),
        (EngineUnavailable("x"), {}, 503),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_is_answered_is_declared(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    document: Any,
    path: str,
    failure: Any,
    fields: dict[str, Any],
    status: int,
) -> None:
    engine.refusal = failure
    body = (QUESTION if "chat" in path else {"prompt": "x"}) | fields
    reply = await http.post(path, json=body)
    assert reply.status_code == status
    responses = document["paths"][path]["post"]["responses"]
    assert {"400", "401", "403", "404", "408", "413", "429", "431", "500", "503"} <= set(responses)
    declared = responses[str(status)]
    kind = reply.headers["content-type"].partition(";")[0]
    schema = declared["content"][kind]["schema"]["$ref"].rpartition("/")[2]
    fields_known = set(document["components"]["schemas"][schema]["properties"])
    assert set(reply.json()) <= fields_known
    told = set(declared["headers"])
    assert {name for name in reply.headers if name in ("retry-after", "x-request-id")} <= told


async def test_what_get_routes_answer_is_declared(http: httpx.AsyncClient, document: Any) -> None:
    for path, item in document["paths"].items():
        if "get" not in item:
            continue
        # The live view has no end: its head says as much.
        ask = http.head if path == "/live" else http.get
        reply = await ask(path.replace("{name}", MODEL))
        if path.startswith(KEPT):
            error = reply.json()["error"]
            # Anthropic's errors have no code.
            # Responses are held in memory without a folder.
            codes = ("storage_off", "response_not_found")
            assert error.get("code") in codes or "--data-dir" in error["message"]
            continue
        if path == "/v1/receipts/key":
            assert reply.json()["error"]["code"] == "receipts_off"
            continue
        assert reply.status_code == 200
        content = item["get"]["responses"]["200"]["content"]
        assert reply.headers["content-type"].partition(";")[0] in content


async def test_the_page_loads_only_what_this_server_has(http: httpx.AsyncClient) -> None:
    reply = await http.get("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    # The policy of the other pages: nothing inline, nothing of other servers.
    policy = reply.headers["content-security-policy"]
    assert policy == (await http.get("/")).headers["content-security-policy"]
    assert "unsafe" not in policy
    loaded = re.findall(r'(?:src|rel="stylesheet" href)="([^"]+)"', reply.text)
    assert {"vendor/swagger-ui/swagger-ui-bundle.js", "docs/docs.js"} <= set(loaded)
    for path in loaded:
        assert (await http.get(f"/{path}")).status_code == 200


async def test_every_body_has_an_example_that_is_taken(
    http: httpx.AsyncClient, document: Any
) -> None:
    for path, item in document["paths"].items():
        if "post" not in item:
            continue
        if "requestBody" not in item["post"]:
            continue
        content = item["post"]["requestBody"]["content"]
        if "multipart/form-data" in content:
            continue  # A file has no example; the guide has one.
        example = content["application/json"].get("example")
        assert example is not None, f"{path} has none in services/penstock_gateway/http/openapi.py"
        assert "model" not in example, "it has to run whatever is served"
        reply = await http.post(path, json=example)
        if item["post"]["tags"] == ["pooling"]:
            assert "generates text" in str(reply.json()["error"]), path
        elif path.startswith(KEPT) and path not in COMPUTES:
            message = reply.json()["error"]["message"]
            assert "--data-dir" in message or "--stored-response-hours" in message, path
        elif item["post"]["tags"] == ["adapters"]:
            assert "--enable-lora" in reply.json()["error"]["message"], path
        elif path == "/update_weights_from_disk":
            assert "--weights-allowed-folder" in reply.json()["error"]["message"], path
        else:
            assert reply.status_code == 200, reply.text


def _described(node: Any) -> Iterator[str]:
    """All descriptions in a part of the document."""
    if isinstance(node, dict):
        if isinstance(node.get("description"), str):
            yield node["description"]
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _described(each)


async def test_descriptions_have_no_unfilled_placeholders(http: httpx.AsyncClient) -> None:
    found = list(_described((await http.get("/openapi.json")).json()))
    assert len(found) > 100
    assert not [text for text in found if re.search(r"\{\w+\}", text)]
