"""GET /metrics: vLLM's names, and counts that are those of the requests that were made."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from prometheus_client import Histogram as Theirs
from prometheus_client.parser import text_string_to_metric_families

from penstock.client import SequenceDelta
from penstock.errors import Overloaded
from penstock.metrics.histogram import Histogram
from penstock.metrics.vllm_names import STEP_TOKENS
from penstock_gateway.metrics.counts import (
    BETWEEN_TOKENS,
    CHOICES,
    FIRST_TOKEN,
    TOKENS,
    WHOLE_REQUEST,
)
from tests.gateway.fake_engine import MODEL, FakeEngineClient, say, status


async def scrape(http: httpx.AsyncClient) -> dict[str, float]:
    """Each sample under its name and the labels beside the model's, which all must have but those
    of the process."""
    reply = await http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(reply.text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            if family.name.startswith("process_"):
                labels["model_name"] = MODEL
            assert labels.pop("model_name") == MODEL
            found[",".join([sample.name.removeprefix("vllm:"), *labels.values()])] = sample.value
    return found


async def test_the_engine_cores_state(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.status = status(preemptions=5, drafts=3, drafted_tokens=9, kept_tokens=6)
    found = await scrape(http)
    assert found["num_requests_running,0"] == 2
    assert found["spec_decode_num_drafts_total,0"] == 3
    assert found["spec_decode_num_draft_tokens_total,0"] == 9
    assert found["spec_decode_num_accepted_tokens_total,0"] == 6
    assert found["num_requests_waiting,0"] == 1
    assert found["kv_cache_usage_perc,0"] == pytest.approx(0.4)
    assert found["num_preemptions_total,0"] == 5
    assert found["cache_config_info,16,False,0,0,100"] == 1
    engine.connected = False
    gone = await scrape(http)
    # Old news is none; what this gateway itself counted stays.
    assert set(found) - set(gone) == {
        "num_requests_running,0",
        "num_requests_waiting,0",
        "kv_cache_usage_perc,0",
        "num_preemptions_total,0",
        "spec_decode_num_drafts_total,0",
        "spec_decode_num_draft_tokens_total,0",
        "spec_decode_num_accepted_tokens_total,0",
        "cache_config_info,16,False,0,0,100",
    }


async def test_steps_are_those_that_the_engine_core_tells_of(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    theirs = Theirs("x", "y", buckets=STEP_TOKENS, registry=None)
    counted = Histogram(STEP_TOKENS)
    for tokens in (1, 1, 7, 8, 9, 4096, 100_000):
        theirs.observe(tokens)
        counted.observe(tokens)
    engine.status = status(step_tokens=counted.counts, tokens_computed=int(counted.total))
    found = await scrape(http)
    (family,) = theirs.collect()
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            bound = sample.labels["le"]
            assert found[f"iteration_tokens_total_bucket,0,{bound}"] == sample.value
    assert found["iteration_tokens_total_sum,0"] == 1 + 1 + 7 + 8 + 9 + 4096 + 100_000
    # One that counts in other buckets, or not at all, is not shown.
    for told in ((), (1, 2)):
        engine.status = status(step_tokens=told)
        assert not any(name.startswith("iteration") for name in await scrape(http))


async def test_what_an_engine_core_tells_by_itself_is_left_to_it(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.status = status(preemptions=5)
    before = await scrape(http)
    assert before["process_resident_memory_bytes"] == pytest.approx(
        psutil.Process().memory_info().rss, rel=0.2
    )
    assert engine.welcome is not None
    engine.welcome = msgspec.structs.replace(engine.welcome, own_metrics=True)
    assert set(before) - set(await scrape(http)) == {
        "num_requests_running,0",
        "num_requests_waiting,0",
        "kv_cache_usage_perc,0",
        "num_preemptions_total,0",
        "spec_decode_num_drafts_total,0",
        "spec_decode_num_draft_tokens_total,0",
        "spec_decode_num_accepted_tokens_total,0",
        "cache_config_info,16,False,0,0,100",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
    }


async def test_each_engine_core_has_a_label(
    http: httpx.AsyncClient, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = engine.engines
    busy = status(running=7, blocks_free=0)
    second = msgspec.structs.replace(first, index=1, status=busy)
    silent = msgspec.structs.replace(first, index=2, status_age=3.0, ready=False)
    engines = [first, second, silent]
    monkeypatch.setattr(FakeEngineClient, "engines", property(lambda self: engines))
    engine.routed.update({(0, "prefix"): 3, (1, "load"): 2})
    engine.moved, engine.refused = 4, 1
    found = await scrape(http)
    running = {name: n for name, n in found.items() if name.startswith("num_requests_running")}
    assert running == {"num_requests_running,0": 2, "num_requests_running,1": 7}
    assert found["kv_cache_usage_perc,1"] == 1
    assert found["penstock:engines,known"] == found["penstock:engines,connected"] == 3
    assert found["penstock:engines,ready"] == 2
    assert found["penstock:routed_requests_total,0,prefix"] == 3
    assert found["penstock:routed_requests_total,1,load"] == 2
    assert found["penstock:moved_requests_total"] == 4
    assert found["penstock:refused_resumptions_total"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_are_counted(
    http: httpx.AsyncClient, engine: FakeEngineClient, stream: bool
) -> None:
    engine.script = say("ab")  # then the choice's index, then the end: 4 tokens
    prompts = ["12345", "1234567"]
    await http.post("/v1/completions", json={"prompt": prompts, "n": 2, "stream": stream})
    found = await scrape(http)
    assert found["prompt_tokens_total"] == 12
    assert found["generation_tokens_total"] == 2 * 2 * 4
    assert found["request_success_total,stop"] == 4
    assert found["request_success_total,abort"] == 0
    assert found["request_prompt_tokens_count"] == 2
    assert found["request_prompt_tokens_sum"] == 12
    assert found["request_prompt_tokens_bucket,5.0"] == 1
    assert found["request_generation_tokens_sum"] == 16
    assert found["time_to_first_token_seconds_count"] == 2
    assert found["inter_token_latency_seconds_count"] == 2 * 2 * 3
    assert found["e2e_request_latency_seconds_count"] == 2
    assert found["prefix_cache_queries_total"] == 12
    assert found["prefix_cache_hits_total"] == 0
    assert found["request_params_n_count"] == 2
    assert found["request_params_n_sum"] == 4
    # /v1/completions takes 16 where nothing is said.
    assert found["request_params_max_tokens_sum"] == 2 * 16
    assert found["request_max_num_generation_tokens_sum"] == 2 * 4
    assert found["request_max_num_generation_tokens_count"] == 2


async def test_how_requests_end(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    for finish in ("length", "timeout", "error"):
        last = SequenceDelta(index=0, finish_reason=finish, error="x")  # type: ignore[arg-type]
        engine.script = lambda prompt, params, last=last: iter([[last]])
        await http.post("/v1/completions", json={"prompt": "x"})
    engine.script = lambda prompt, params: iter([Overloaded("x", retry_after=1)])
    await http.post("/v1/completions", json={"prompt": "x"})
    engine.refusal = Overloaded("x", retry_after=1)
    await http.post("/v1/completions", json={"prompt": "x"})  # never began
    found = await scrape(http)
    ended = {reason: found[f"request_success_total,{reason}"] for reason in ("length", "timeout")}
    assert ended == {"length": 1, "timeout": 1}
    assert found["request_success_total,error"] == 2
    assert found["e2e_request_latency_seconds_count"] == 4
    assert found["request_prompt_tokens_count"] == 4


async def test_responses_are_counted_by_status(http: httpx.AsyncClient) -> None:
    await http.get("/nothing")
    for stream in (False, True):
        await http.post("/v1/completions", json={"prompt": "x", "stream": stream})
    await http.post("/v1/completions", content=b"{")
    found = await scrape(http)
    counted = {code: found[f"penstock:http_responses_total,{code}"] for code in (200, 400, 404)}
    assert counted == {200: 2, 400: 1, 404: 1}


async def test_a_client_that_leaves_counts_as_aborted(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    turns = 0

    def endless(prompt: Any, params: Any) -> Any:
        nonlocal turns
        while True:
            turns += 1
            yield [SequenceDelta(index=0, text="a", token_ids=[97])]
            yield 0.01

    engine.script = endless
    asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
    while turns < 3:  # The first has been taken.
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    found = await scrape(http)
    assert found["request_success_total,abort"] == 1
    assert found["generation_tokens_total"] > 0


async def test_times_are_those_that_went_by(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    token = [SequenceDelta(index=0, text="a", token_ids=[97])]
    last = [SequenceDelta(index=0, finish_reason="stop")]
    engine.script = lambda prompt, params: iter([0.2, token, 0.1, token, 0.05, last])
    begun = time.monotonic()
    await http.post("/v1/completions", json={"prompt": "x"})
    elapsed = time.monotonic() - begun
    found = await scrape(http)
    first = found["time_to_first_token_seconds_sum"]
    between = found["inter_token_latency_seconds_sum"]
    assert first >= 0.2
    assert between >= 0.1
    whole = found["e2e_request_latency_seconds_sum"]
    assert max(0.35, first + between) <= whole <= elapsed
    names = ("queue", "prefill", "decode", "inference")
    times = {name: found[f"request_{name}_time_seconds_sum"] for name in names}
    assert times["prefill"] >= 0.2
    assert times["decode"] >= 0.1
    assert times["queue"] + times["prefill"] == pytest.approx(first)
    assert times["prefill"] + times["decode"] == pytest.approx(times["inference"])
    assert times["decode"] == pytest.approx(between)
    assert {found[f"request_{name}_time_seconds_count"] for name in names} == {1}


def test_what_another_process_counted_has_to_fit() -> None:
    counted = Histogram(CHOICES)
    for value in (1, 3, 100):
        counted.observe(value)
    again = Histogram.counted(CHOICES, counted.counts, counted.total)
    assert (again.cumulative(), again.total) == (counted.cumulative(), counted.total)
    with pytest.raises(ValueError, match="5 bounds have 6 buckets: 2"):
        Histogram.counted(CHOICES, (1, 2), 3)


@pytest.mark.parametrize(
    "bounds", [FIRST_TOKEN, BETWEEN_TOKENS, WHOLE_REQUEST, TOKENS, STEP_TOKENS, CHOICES]
)
def test_our_histogram_is_theirs(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    ours, theirs = Histogram(bounds), Theirs("x", "y", buckets=bounds, registry=None)
    rng = random.Random(7)
    values = [*bounds, 0.0, *(rng.expovariate(1 / rng.choice(bounds)) for _ in range(500))]
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    (family,) = theirs.collect()
    expected = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert dict(ours.cumulative()) == expected
    assert ours.total == pytest.approx(next(s.value for s in family.samples if "_sum" in s.name))
