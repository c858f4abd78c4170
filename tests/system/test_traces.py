"""Traces of real requests, held against the timeline that the same replies bring."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from testing.serving import Server
from tests.gateway.collector import Collector, Seen

pytestmark = [pytest.mark.timeout(900)]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(collector: Collector) -> Iterator[Server]:
    """A system that sends its traces to `collector`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        running = Server("--otlp-traces-endpoint", collector.url, "--slow-request-seconds", "0")
    try:
        yield running
    finally:
        running.close()


def asking(name: str) -> dict[str, str]:
    return {
        "x-request-id": name,
        "x-penstock-timeline": "1",
        "traceparent": f"00-{TRACE}-{PARENT}-01",
    }


def check_nesting(root: Seen, children: list[Seen], sequences: int) -> None:
    assert (root.trace, root.parent) == (TRACE, PARENT)
    for choice in range(sequences):
        mine = [child for child in children if child.attributes["penstock.choice"] == choice]
        assert [child.name for child in mine] == ["queue", "prefill", "decode"]
        for before, after in itertools.pairwise(mine):
            assert before.end == after.begin
        assert root.begin <= mine[0].begin
        assert mine[-1].end <= root.end
        for child in mine:
            assert child.begin <= child.end


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"prompt": ["One", "Two words"]}])
def test_the_children_are_the_timeline(
    traced: Server, collector: Collector, fields: dict[str, Any]
) -> None:
    name = f"whole-{len(fields)}-{'n' in fields}"
    body = {"prompt": "The capital of France is", "max_tokens": 24, "ignore_eos": True, **fields}
    with httpx.Client(base_url=traced.url, timeout=240) as client:
        reply = client.post("/v1/completions", json=body, headers=asking(name)).json()
    root, children = collector.request(name)
    told = {each["choice"]: each for each in reply["penstock_timeline"]["sequences"]}
    check_nesting(root, children, len(told))
    assert len(children) == 3 * len(told)
    for choice, engine in told.items():
        queue, prefill, decode = (
            child for child in children if child.attributes["penstock.choice"] == choice
        )
        whole = sum(engine[part] for part in ("queue", "requeued", "compute", "dispatch", "idle"))
        assert queue.seconds == pytest.approx(engine["queue"], abs=1e-5)
        ended = (prefill.end - queue.begin) / 1e9
        assert ended == pytest.approx(engine["first_token"], abs=1e-5)
        assert (decode.end - queue.begin) / 1e9 == pytest.approx(whole, abs=1e-5)
        assert decode.attributes["penstock.steps"] == engine["steps"]
    facts, usage = root.attributes, reply["usage"]
    assert facts["gen_ai.response.id"] == reply["id"]
    assert facts["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert facts["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert facts["gen_ai.usage.num_sequences"] == len(reply["choices"])
    assert facts["gen_ai.response.finish_reasons"] == ["length"] * len(reply["choices"])
    assert facts["gen_ai.request.max_tokens"] == 24


def test_a_stop_string_and_a_beam_search_have_theirs(traced: Server, collector: Collector) -> None:
    """The engine speaks of the first a step after the answer; the search is one request, of whose
    first step it tells."""
    with httpx.Client(base_url=traced.url, timeout=240) as client:
        body = {"prompt": "1, 2, 3, 4,", "max_tokens": 60, "temperature": 0, "stop": [", 8"]}
        reply = client.post("/v1/completions", json=body, headers=asking("stop")).json()
        assert reply["choices"][0]["finish_reason"] == "stop"
        search = {"prompt": "1, 2,", "max_tokens": 14, "n": 3, "use_beam_search": True}
        client.post("/v1/completions", json=search, headers=asking("beams")).raise_for_status()
    root, children = collector.request("stop")
    check_nesting(root, children, 1)
    assert root.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert root.attributes["gen_ai.usage.output_tokens"] == reply["usage"]["completion_tokens"]
    root, children = collector.request("beams")
    assert [child.name for child in children] == ["queue", "prefill"], "a step is one token"
    assert root.begin <= children[0].begin
    assert children[0].end == children[1].begin
    assert children[1].end <= root.end
    assert root.attributes["penstock.prompts"] == 1
    assert root.attributes["gen_ai.usage.num_sequences"] == 3


def test_a_client_that_leaves_gets_its_trace_all_the_same(
    traced: Server, collector: Collector
) -> None:
    """With the engine's account of what ran until then."""

    async def leave() -> None:
        body = {"prompt": "Count:", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        async with (
            httpx.AsyncClient(base_url=traced.url, timeout=240) as client,
            client.stream("POST", "/v1/completions", json=body, headers=asking("left")) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    return

    asyncio.run(leave())
    root, children = collector.request("left")
    assert root.attributes["error.type"] == "client_disconnected"
    assert root.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert [child.name for child in children][:2] == ["queue", "prefill"]
    assert all(root.begin <= child.begin <= child.end <= root.end for child in children)


def test_chat_and_responses_streamed(traced: Server, collector: Collector) -> None:
    message = {"role": "user", "content": "Say hello."}
    ways: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [message], "max_tokens": 8},
        "/v1/responses": {"input": "Say hello.", "max_output_tokens": 8},
    }
    with httpx.Client(base_url=traced.url, timeout=240) as client:
        for path, body in ways.items():
            client.post(path, json={**body, "stream": True}, headers=asking(f"s{path}"))
    for path in ways:
        root, children = collector.request(f"s{path}")
        check_nesting(root, children, 1)
        assert root.attributes["gen_ai.request.stream"] is True
        assert root.attributes["gen_ai.usage.output_tokens"] <= 8
        assert 0 < root.attributes["gen_ai.latency.time_to_first_token"] < root.seconds


def test_embeddings_and_the_last_spans_of_a_system_that_leaves(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans that are to go in an hour go when the system leaves."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    with Collector() as collector:
        running = start_server("all-minilm-l6-v2", "--otlp-traces-endpoint", collector.url)
        body = {"input": ["A kitten sleeps.", "Rain."], "model": running.model}
        with httpx.Client(base_url=running.url, timeout=240) as client:
            reply = client.post("/v1/embeddings", json=body, headers={"x-request-id": "vectors"})
        assert collector.spans == []
        running.stop()
        root, children = collector.request("vectors")
    assert [child.name for child in children].count("prefill") == 2
    assert all(root.begin <= child.begin <= child.end <= root.end for child in children)
    assert root.attributes["gen_ai.operation.name"] == "embeddings"
    assert root.attributes["gen_ai.usage.input_tokens"] == reply.json()["usage"]["prompt_tokens"]
    assert "gen_ai.usage.output_tokens" not in root.attributes
