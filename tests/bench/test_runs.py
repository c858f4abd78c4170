"""The generator against a scripted server: counts are exact; times are only bounded from below,
by the delays of the script."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock_bench.load.options import EndControl, Length, LoadOptions
from penstock_bench.load.record import ErrorKind, RequestRecord
from penstock_bench.load.report import Summary, summarise
from penstock_bench.load.run import LoadRun
from penstock_bench.load.target import Target
from penstock_bench.load.workload import Workload
from testing.scripted_server import Script, ScriptedServer


async def load(server: ScriptedServer, **options: Any) -> tuple[Summary, list[RequestRecord]]:
    options.setdefault("output_tokens", Length.parse("6"))
    options.setdefault("input_tokens", Length.parse("10"))
    options.setdefault("warmup", 0)
    chosen = LoadOptions(url=server.url, **options)
    run = LoadRun(Target.from_url(server.url), Workload(chosen, "scripted"), chosen)
    await run.warm_up()
    await run.measure()
    return summarise(run.records), run.records


class HeldServer(ScriptedServer):
    """Answers nobody before so many have asked."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self._wanted = wanted

    async def _answer(self, *arguments: Any) -> None:
        while len(self.bodies) < self._wanted:
            await asyncio.sleep(0.001)
        await super()._answer(*arguments)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("usage", ["end", "chunk", "none"])
@pytest.mark.parametrize("tokens_per_chunk", [1, 4])
async def test_every_token_is_counted(endpoint: str, usage: str, tokens_per_chunk: int) -> None:
    script = Script(usage=usage, tokens_per_chunk=tokens_per_chunk, role_chunk=True)
    async with ScriptedServer(lambda n, body: script) as server:
        summary, records = await load(server, endpoint=endpoint, requests=9, concurrency=4)
    assert (summary.completed, summary.errors) == (9, {})
    chunks = 6 if tokens_per_chunk == 1 else 2
    assert all(len(record.arrivals) == chunks for record in records)
    assert summary.output_tokens == 9 * (chunks if usage == "none" else 6)
    if usage == "chunk" and tokens_per_chunk == 4:
        assert all(list(record.totals) == [4, 6] for record in records)


async def test_closed_loop_holds_its_concurrency() -> None:
    now, peak = 0, 0

    def on_end(record: RequestRecord) -> None:
        nonlocal now
        now -= 1

    def choose(n: int, body: dict[str, Any]) -> Script:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        return Script(first_delay=0.02)

    async with ScriptedServer(choose) as server:
        options = LoadOptions(
            url=server.url, concurrency=5, requests=23, warmup=0, output_tokens=Length.parse("2")
        )
        run = LoadRun(Target.from_url(server.url), Workload(options, "scripted"), options, on_end)
        await run.measure()
    assert len(run.records) == 23
    assert all(record.ok for record in run.records)
    assert peak == 5


async def test_open_loop_does_not_wait_for_answers() -> None:
    """All 30 are sent although not one is answered before the last is due."""
    async with HeldServer(30) as server:
        summary, records = await load(
            server, rate=300.0, arrivals="constant", requests=30, concurrency=1
        )
    assert summary.completed == 30
    assert max(record.sent or 0.0 for record in records) < min(r.ended or 0.0 for r in records)
    intended = [record.intended - records[0].intended for record in records]
    assert intended == pytest.approx([index / 300 for index in range(30)])


async def test_open_loop_counts_latency_from_the_intended_start() -> None:
    """A generator that is held up sends late; the lateness is part of every latency."""
    async with ScriptedServer() as server:
        options = LoadOptions(
            url=server.url,
            rate=1000.0,
            arrivals="constant",
            requests=20,
            warmup=0,
            output_tokens=Length.parse("1"),
        )
        run = LoadRun(Target.from_url(server.url), Workload(options, "scripted"), options)

        async def hold_up() -> None:
            import time

            time.sleep(0.2)  # blocks the event loop, as a starved machine would

        await asyncio.gather(run.measure(), hold_up())
    late = [record for record in run.records if (record.sent or 0.0) - record.intended > 0.1]
    assert late
    assert all(record.arrivals[0] - record.intended > 0.1 for record in late)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script(status=503), "http_503"),
        (Script(status=429), "http_429"),
        (Script(fault="close", fault_after=2), ErrorKind.TRUNCATED),
        (Script(fault="no-done", fault_after=2), ErrorKind.TRUNCATED),
        (Script(fault="error", fault_after=2), ErrorKind.STREAM_ERROR),
        (Script(fault="garbage", fault_after=2), ErrorKind.MALFORMED),
        (Script(fault="hang", fault_after=0), ErrorKind.TIMEOUT_FIRST),
        (Script(fault="hang", fault_after=2), ErrorKind.TIMEOUT_STREAM),
        (Script(tokens=3), ErrorKind.WRONG_LENGTH),
        (Script(tokens=3, usage="none", finish_reason="stop"), ErrorKind.WRONG_LENGTH),
        (Script(tokens=0), ErrorKind.EMPTY),
    ],
)
async def test_each_error_is_counted_by_its_kind(script: Script, kind: str) -> None:
    """Every third request goes wrong; the others don't notice."""
    timeout = 2.0 if script.fault == "hang" else 60.0
    async with ScriptedServer(lambda n, body: Script() if n % 3 else script) as server:
        summary, _ = await load(server, requests=9, concurrency=3, timeout=timeout)
    assert summary.errors == {str(kind): 3}
    assert summary.completed == 6
    assert summary.error_examples[str(kind)]


async def test_a_port_without_a_server_is_an_error() -> None:
    async with ScriptedServer() as server:
        pass
    summary, _ = await load(server, requests=3)
    assert summary.errors == {"connect_failed": 3}


async def test_the_time_limit_cuts_off_and_says_so() -> None:
    """Requests 0 to 3 are quick, the rest hang; all are accounted for."""

    def choose(n: int, body: dict[str, Any]) -> Script:
        return Script() if n < 4 else Script(fault="hang", fault_after=n % 2)

    for mode in ({"concurrency": 4}, {"rate": 1000.0}):
        async with ScriptedServer(choose) as server:
            summary, _ = await load(server, requests=8, max_time=2.0, **mode)
        assert summary.completed == 4
        assert summary.cut_off == summary.requests - 4 > 0
        assert summary.failed == 0
        assert summary.ttft_ms is not None
        assert summary.ttft_ms.censored == 2
        assert "max" in summary.ttft_ms.lower_bounds


async def test_duration_stops_new_requests_only() -> None:
    async with ScriptedServer(lambda n, body: Script(first_delay=0.1)) as server:
        summary, _ = await load(server, requests=1000, concurrency=2, duration=0.25)
    assert 2 <= summary.requests < 1000
    assert summary.completed == summary.requests


async def test_too_many_in_flight_are_counted_not_sent() -> None:
    async with ScriptedServer(lambda n, body: Script(first_delay=2.0)) as server:
        summary, _ = await load(server, requests=10, rate=1000.0, max_in_flight=4)
    assert summary.errors == {"not_sent_too_many_in_flight": 6}
    assert len(server.bodies) == 4


async def test_warm_up_is_not_measured() -> None:
    async with ScriptedServer() as server:
        summary, _ = await load(server, requests=3, warmup=4)
    assert summary.requests == 3
    assert len(server.bodies) == 7
    prompts = [body["prompt"] for body in server.bodies]
    assert len(set(prompts)) == 7


async def test_the_warm_up_has_a_bound_of_its_own() -> None:
    async with ScriptedServer(lambda n, body: Script(first_delay=0 if n else 3600)) as server:
        summary, _ = await load(server, requests=2, warmup=1, warmup_time=0.2)
    assert summary.completed == 2


async def test_bodies_are_what_the_options_say() -> None:
    async with ScriptedServer() as server:
        await load(
            server,
            requests=1,
            prompt_kind="token-ids",
            token_id_range=(5, 9),
            end_control=EndControl.parse("logit-bias:0,2"),
            extra_body={"top_k": 3},
        )
        await load(server, requests=1, endpoint="chat", usage_per_chunk=True)
    ids, chat = server.bodies
    assert len(ids["prompt"]) == 10
    assert set(ids["prompt"]) <= {5, 6, 7, 8}
    assert ids["logit_bias"] == {"0": -100, "2": -100}
    assert ids["top_k"] == 3
    assert "ignore_eos" not in ids
    assert len(chat["messages"][0]["content"].split()) == 10
    assert chat["ignore_eos"] is True
    assert chat["max_tokens"] == 6
    assert chat["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert json.dumps(chat)
