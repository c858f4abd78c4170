"""The timeline as clients and the log see it, over a scripted engine client."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from penstock.client import SequenceDelta
from penstock.client.timing import LAST_WORD, RequestTiming
from penstock.config.settings import GatewayConfig
from penstock.protocol.to_frontend import SequenceTimeline
from tests.gateway.fake_engine import FakeEngineClient, FakeGeneration
from tests.gateway.live_gateway import LiveGateway

ENGINE = SequenceTimeline(
    queue=0.05,
    requeued=0.01,
    compute=0.1,
    dispatch=0.02,
    idle=0.0,
    share=0.04,
    first_token=0.11,
    steps=3,
    preemptions=1,
    swaps=2,
    cached_tokens=16,
)
PATHS = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}


class TimedClient(FakeEngineClient):
    """Its requests take 0.2 s; the engine speaks of 0.18 s of them, 0.1 s after a stop string."""

    late = 0.0

    def begin(self, generation: FakeGeneration, n: int, *, timed: bool) -> None:
        generation.timing = RequestTiming(n) if timed else None
        if generation.timing is not None:
            generation.timing.submit()
        generation._steps = self._play(generation, n)

    def _play(self, generation: FakeGeneration, n: int) -> Any:
        yield 0.2
        timing = generation.timing
        for index in range(n if timing is not None else 0):
            timing.end(index)
            if not self.late:
                timing.hear(index, ENGINE)
        yield [
            SequenceDelta(index=i, text="a", token_ids=[97], finish_reason="stop") for i in range(n)
        ]


def ask(gateway: LiveGateway, path: str, *headers: str, **fields: Any) -> tuple[str, bytes]:
    """(head, body)."""
    with gateway.connect() as connection:
        body = json.dumps({**PATHS[path], **fields}).encode()
        connection.post(path, body, "connection: close", *headers)
        head, _, data = connection.read_all().partition(b"\r\n\r\n")
        return head.decode().lower(), data


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_asks_gets_it_in_the_body_and_a_header(path: str) -> None:
    with LiveGateway(TimedClient()) as gateway:
        begun = time.perf_counter()
        head, data = ask(gateway, path, "x-penstock-timeline: 1", n=2)
        wall = time.perf_counter() - begun
    timeline = json.loads(data)["penstock_timeline"]
    assert 0.19 < timeline["wall"] < wall
    parts = timeline["parts"]
    assert sum(parts.values()) == pytest.approx(timeline["wall"], abs=1e-4)
    assert parts["queue"] == 0.05
    assert parts["compute"] == 0.1
    assert 0 < parts["prepare"] <= timeline["wall"] - 0.19, "before the engine was asked"
    assert [each["choice"] for each in timeline["sequences"]] == [0, 1]
    assert timeline["sequences"][1] == {
        "choice": 1,
        **{name: getattr(ENGINE, name) for name in ENGINE.__struct_fields__},
    }
    told = dict(re.findall(r"(\w+);dur=([\d.]+)", re.search(r"server-timing: (.*)", head)[1]))
    assert float(told["total"]) == pytest.approx(1000 * timeline["wall"], abs=0.01)
    assert float(told["compute"]) == 100


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_ends_with_it(path: str, usage: bool) -> None:
    with LiveGateway(TimedClient()) as gateway:
        options = {"stream_options": {"include_usage": usage}}
        _, data = ask(gateway, path, "x-penstock-timeline: 1", stream=True, **options)
    events = re.findall(rb"data: (.*)\n\n", data)
    assert events[-1] == b"[DONE]"
    last = json.loads(events[-2])
    assert last["choices"] == []
    assert last["penstock_timeline"]["sequences"][0]["steps"] == 3
    assert not any(b"penstock_timeline" in event for event in events[:-2])
    if usage:
        assert json.loads(events[-3])["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [(), ("x-penstock-timeline: 0",)])
def test_nobody_else_gets_it(stream: bool, headers: tuple[str, ...]) -> None:
    with LiveGateway(TimedClient()) as gateway:
        head, data = ask(gateway, "/v1/completions", *headers, stream=stream)
    assert "200 ok" in head
    assert b"timeline" not in data
    assert "server-timing" not in head


def test_another_value_is_a_400_that_names_the_header() -> None:
    with LiveGateway(TimedClient()) as gateway:
        head, data = ask(gateway, "/v1/completions", "x-penstock-timeline: yes")
    assert head.startswith("http/1.1 400")
    assert "x-penstock-timeline must be 0 or 1" in json.loads(data)["error"]["message"]


def test_an_engine_that_says_nothing_costs_half_a_second_and_no_more() -> None:
    client = TimedClient()
    client.late = 60.0
    with LiveGateway(client) as gateway:
        begun = time.perf_counter()
        _, data = ask(gateway, "/v1/completions", "x-penstock-timeline: 1")
        # No more: an engine that never says anything would be waited for without an end.
        assert time.perf_counter() - begun > 0.6
    assert LAST_WORD == 0.5
    timeline = json.loads(data)["penstock_timeline"]
    assert timeline["sequences"] == []
    assert "compute" not in timeline["parts"]


@pytest.mark.parametrize(("seconds", "lines"), [(0.1, 1), (600.0, 0), (0.0, 0)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_request_is_one_line_in_the_log(
    seconds: float, lines: int, stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.process import logs

    logs.setup("test")
    config = GatewayConfig(slow_request_seconds=seconds)
    with LiveGateway(TimedClient(), config=config) as gateway:
        ask(gateway, "/v1/completions", "x-request-id: the-slow-one", stream=stream)
    found = [line for line in capsys.readouterr().err.splitlines() if "slow request" in line]
    assert len(found) == lines
    for line in found:
        assert "request=the-slow-one" in line
        assert "preemptions=1" in line
        assert "compute=0.1 " in line
        assert re.search(r"rest=\d", line)
