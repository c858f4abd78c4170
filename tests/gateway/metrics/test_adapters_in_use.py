"""vllm:lora_requests_info, read as Gateway API Inference Extension's endpoint picker reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from penstock.client.observer import ObservedRequest
from penstock.metrics.families import Families
from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock_gateway.metrics.adapters import NAME, adapter_families
from penstock_gateway.metrics.counts import CountingObserver, GatewayCounts
from tests.gateway.fake_engine import MODEL, FakeEngineClient

FILES = {name: AdapterFile(letter * 64, f"/{name}") for name, letter in (("sql", "a"), ("de", "b"))}


def picked(samples: list[Any]) -> tuple[set[str], set[str], int]:
    """Running, waiting, and the most: of the latest sample, whose labels are lists with commas."""
    latest = max(samples, key=lambda each: each.value)
    lists = [
        {name.strip() for name in latest.labels[label].split(",") if name.strip()}
        for label in ("running_lora_adapters", "waiting_lora_adapters")
    ]
    return lists[0], lists[1], int(latest.labels["max_lora"])


def test_running_and_waiting_ones() -> None:
    engine, counts = FakeEngineClient(), GatewayCounts()
    engine.welcome = msgspec.structs.replace(engine.welcome, max_lora_rank=8, max_loras=4)
    engine.adapters.learn([NamedAdapter(name, file) for name, file in FILES.items()])
    backend: Any = SimpleNamespace(client=engine, counts=counts)

    def told() -> tuple[set[str], set[str], int]:
        [family] = adapter_families(backend, Families(MODEL))
        return picked(family.samples)

    def begin(digest: str) -> ObservedRequest:
        request = ObservedRequest(CountingObserver(counts).request(3), 3, 1, digest)
        request.accepted(None, 5)
        return request

    assert told() == (set(), set(), 4)
    plain, sql, again, german = map(begin, ("", "a" * 64, "a" * 64, "b" * 64))
    assert told() == (set(), {"sql", "de"}, 4)
    sql.entered()
    plain.entered()
    assert told() == ({"sql"}, {"de"}, 4)
    for request in (sql, again, german, plain):
        request.fail()
    assert told() == (set(), set(), 4)
    assert not counts.with_adapters


async def test_on_the_main_port(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    text = (await http.get("/metrics")).text
    assert NAME not in text, "a server without adapters has none"
    engine.welcome = msgspec.structs.replace(engine.welcome, max_lora_rank=8, max_loras=2)
    engine.adapters.learn([NamedAdapter("sql", FILES["sql"])])
    reply = await http.post("/v1/completions", json={"model": "sql", "prompt": "Hi"})
    assert reply.status_code == 200
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    [found] = [each for each in families if each.name == NAME]
    assert found.type == "gauge"
    assert picked(found.samples) == (set(), set(), 2)
