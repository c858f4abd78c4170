"""Query parameters of every operation, as its own description in the OpenAPI document has them."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient


async def described(http: httpx.AsyncClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and schema of each query parameter, of every operation."""
    document = (await http.get("/openapi.json")).json()
    return [
        (
            method.upper(),
            re.sub(r"\{\w+\}", "x", path),
            {
                each["name"]: each["schema"]
                for each in operation["parameters"]
                if each["in"] == "query"
            },
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "text/html" not in operation["responses"]["200"]["content"]
    ]


def senseless(schema: dict[str, Any]) -> list[str]:
    """Values that a schema excludes."""
    if schema["type"] == "array":
        return senseless(schema["items"])
    if "enum" in schema or schema["type"] == "boolean":
        return ["nonsense", ""]
    if schema["type"] == "integer":
        below = [] if "minimum" not in schema else [str(schema["minimum"] - 1), "-5"]
        above = [] if "maximum" not in schema else [str(schema["maximum"] + 1)]
        return ["nonsense", "", "1.5", "9" * 30, "²", *below, *above]
    return []


async def test_every_operation_refuses_what_it_does_not_know(http: httpx.AsyncClient) -> None:
    operations = await described(http)
    assert len(operations) > 50
    for method, path, known in operations:
        response = await http.request(method, f"{path}?nonsense=1", json={})
        assert response.status_code == 400, (method, path, response.text)
        assert 'unknown parameter \\"nonsense\\"' in response.text
        allowed = ", ".join(known) or "none"
        assert f"allowed: {allowed}" in response.text


async def test_head_is_answered_as_get_is(http: httpx.AsyncClient) -> None:
    """Monitors and browsers ask so, and curl -I. What is live has no end here."""
    operations = await described(http)
    paths = [path for method, path, _ in operations if method == "GET" and "live" not in path]
    assert len(paths) >= 15
    for path in paths:
        got, headed = await http.get(path), await http.head(path)
        assert headed.status_code == got.status_code, path
        assert headed.headers["content-type"] == got.headers["content-type"], path
        unknown = await http.head(f"{path}?nonsense=1")
        assert unknown.status_code == 400, path


async def test_every_operation_refuses_senseless_values(http: httpx.AsyncClient) -> None:
    tried = 0
    for method, path, known in await described(http):
        for name, schema in known.items():
            for value in senseless(schema):
                response = await http.request(method, path, params={name: value}, json={})
                assert response.status_code == 400, (method, path, name, value)
                assert f"{name} is " in response.text
                tried += 1
            if schema["type"] != "array":
                given = "true" if schema["type"] == "boolean" else "1"
                pair = f"{name}={given}"
                response = await http.request(method, f"{path}?{pair}&{pair}", json={})
                assert response.status_code == 400
                assert f"{name} is given 2 times" in response.text
    assert tried > 20


async def test_unknown_ones_may_be_skipped_and_senseless_ones_are_not(
    engine: FakeEngineClient,
) -> None:
    app = create_app(engine, GatewayConfig(unknown_fields="ignore"))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        assert (await http.get("/v1/models?nonsense=1")).status_code == 200
        assert (await http.post("/pause?mode=nonsense")).status_code == 400


@pytest.mark.parametrize("path", ["/", "/v1/models?client_version=1.2.3"])
async def test_what_browsers_and_clients_add_does_no_harm(
    http: httpx.AsyncClient, path: str
) -> None:
    mark = "&" if "?" in path else "?utm_source=x"
    assert (await http.get(path + mark)).status_code == 200
