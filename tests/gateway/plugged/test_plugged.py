"""What plug-ins bring to a gateway: the documentation's examples, and others that misbehave."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from penstock.config.plugins import ENDPOINTS, LOGGERS, METRICS
from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock_gateway.app import create_app
from testing.examples import install, write_package
from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.said import said

BAD = """
import logging
from penstock.client.observer import RequestObserver
from penstock_gateway.http.operations import Operation
from penstock_gateway.system import version

async def other(request):
    raise AssertionError("never reached")

def shadows(service):
    return [version.OPERATION.route(other)]

def raises(service):
    raise RuntimeError("no luck")

def no_routes(service):
    return ["/path"]

class Raises(RequestObserver):
    async def admit(self):
        raise RuntimeError("may not refuse")
    def submitted(self, request):
        raise RuntimeError("no luck either")

class Logger:
    heard = 0
    def __init__(self, served):
        pass
    def request(self, prompt_tokens):
        Logger.heard += 1
        return Raises()

def metrics(service):
    raise RuntimeError("none today")

def taken(service):
    from prometheus_client.core import GaugeMetricFamily
    yield GaugeMetricFamily("penstock:gateway_open_requests", "Ours.")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pst_bad.py").write_text(BAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@asynccontextmanager
async def gateway(plugins: str = "all") -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(FakeEngineClient(), GatewayConfig(plugins=plugins))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def complete(http: httpx.AsyncClient, prompt: str) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
    reply = await http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"]


async def test_the_example_of_an_endpoint(site: Path) -> None:
    install("endpoint", site)
    async with gateway() as http:
        told = (await http.get("/v1/uptime")).json()
        assert told["seconds"] >= 0
        assert told["open_requests"] == 0
        document = (await http.get("/openapi.json")).json()
        assert document["paths"]["/v1/uptime"]["get"]["summary"] == "How long this gateway has run"
    async with gateway("none") as http:
        assert (await http.get("/v1/uptime")).status_code == 404


async def test_its_endpoint_wants_the_key_that_it_says(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("endpoint", site)
    monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
    async with gateway() as http:
        assert (await http.get("/v1/uptime")).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert (await http.get("/v1/uptime", headers=key)).status_code in (200, 403)


async def test_the_example_of_a_logger_with_metrics(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("logger", site)
    caplog.set_level(logging.INFO)
    async with gateway("long_prompts") as http:
        before = await _long(http)
        await complete(http, "short")
        await complete(http, "long" * 20)
        assert await _long(http) == before + 1
    found = said(caplog)
    assert found.count("a long prompt") == 1
    assert "prompt_tokens=80" in found


async def _long(http: httpx.AsyncClient) -> float:
    page = (await http.get("/metrics")).text
    name = f'example:long_prompts_total{{model_name="{MODEL}"}} '
    found = [line for line in page.splitlines() if line.startswith(name)]
    return float(found[0].removeprefix(name)) if found else 0.0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("shadows", "wants GET /version, which already exists"),
        ("raises", "has no routes: RuntimeError: no luck"),
        ("no_routes", "which is not an OperationRoute"),
    ],
)
async def test_endpoints_that_will_not_do_are_left_out_or_stop_the_start(
    value: str, says: str, site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_package(site, "pst-bad", "1.0", {ENDPOINTS: {"bad": f"pst_bad:{value}"}})
    async with gateway() as http:
        assert "version" in (await http.get("/version")).json()
    assert says in said(caplog)
    with pytest.raises(StartupError, match=says):
        create_app(FakeEngineClient(), GatewayConfig(plugins="bad"))  # type: ignore[arg-type]


async def test_a_logger_that_raises_hurts_no_request_and_hears_no_more(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_package(site, "pst-bad", "1.0", {LOGGERS: {"bad": "pst_bad:Logger"}})
    async with gateway("none") as http:
        expected = await complete(http, "abc")
    async with gateway() as http:
        assert [await complete(http, "abc") for _ in range(3)] == [expected] * 3
    found = said(caplog)
    assert found.count("no longer called") == 1
    assert "no luck either" in found
    import pst_bad  # type: ignore[import-not-found]

    assert pst_bad.Logger.heard == 1


@pytest.mark.parametrize("value", ["metrics", "taken"])
async def test_metrics_that_raise_or_take_a_name_leave_ours_as_they_are(
    value: str, site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_package(site, "pst-bad", "1.0", {METRICS: {"bad": f"pst_bad:{value}"}})
    async with gateway() as http:
        pages = [(await http.get("/metrics")).text for _ in range(2)]
    for page in pages:
        assert page.count("# TYPE penstock:gateway_open_requests ") == 1
    assert said(caplog).count("metrics are left out") == 1
