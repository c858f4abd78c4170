"""OpenTelemetry traces of a gateway over a scripted engine, as a collector gets them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.errors import RequestFailed
from penstock_gateway.tracing.tracer import FLUSH_WITHIN
from tests.gateway.collector import Collector
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.generate.test_timeline import ENGINE, TimedClient
from tests.gateway.live_gateway import LiveGateway
from tests.gateway.realtime.hearing import Listener, append, begin, commit, opened, speech, told

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
pytestmark = pytest.mark.timeout(300)

PATHS = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
}
SERVER = 2


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent soon."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def gateway(
    collector: Collector, engine: FakeEngineClient | None = None, **settings: Any
) -> LiveGateway:
    config = GatewayConfig(otlp_traces_endpoint=collector.url, **settings)
    return LiveGateway(TimedClient() if engine is None else engine, config=config)


def ask(
    running: LiveGateway, path: str, name: str, *headers: str, **fields: Any
) -> tuple[str, bytes]:
    """(head, body)."""
    with running.connect() as connection:
        body = json.dumps({**PATHS[path], **fields}).encode()
        connection.post(path, body, "connection: close", f"x-request-id: {name}", *headers)
        head, _, data = connection.read_all().partition(b"\r\n\r\n")
        return head.decode().lower(), data


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_and_its_course_in_the_engine_its_children(
    collector: Collector, path: str, stream: bool
) -> None:
    given = f"traceparent: 00-{TRACE}-{PARENT}-01", "tracestate: other=1,vendor=abc"
    with gateway(collector) as running:
        begun = time.time_ns()
        head, _ = ask(running, path, "one", *given, stream=stream, temperature=0.5)
        root, children = collector.request("one")
        over = time.time_ns()
    assert "200 ok" in head
    assert collector.paths == {"/v1/traces"}
    assert (root.trace, root.parent, root.kind) == (TRACE, PARENT, SERVER)
    assert root.state == "other=1,vendor=abc"
    assert root.name == f"POST {path}"
    assert root.resource["service.name"] == "penstock-gateway"
    assert begun <= root.begin < root.end <= over
    assert [child.name for child in children] == ["queue", "prefill", "decode"]
    queue, prefill, decode = children
    assert {child.trace for child in children} == {TRACE}
    assert root.begin <= queue.begin
    assert queue.end == prefill.begin
    assert prefill.end == decode.begin
    assert decode.end <= root.end
    # The account of the scripted engine, to a microsecond.
    assert queue.seconds == pytest.approx(ENGINE.queue, abs=1e-6)
    assert prefill.seconds == pytest.approx(ENGINE.first_token - ENGINE.queue, abs=1e-6)
    whole = ENGINE.queue + ENGINE.requeued + ENGINE.compute + ENGINE.dispatch + ENGINE.idle
    assert (decode.end - queue.begin) / 1e9 == pytest.approx(whole, abs=1e-6)
    assert decode.attributes["penstock.preemptions"] == 1
    assert decode.attributes["penstock.compute_seconds"] == ENGINE.compute
    facts = root.attributes
    assert facts["http.response.status_code"] == 200
    assert facts["gen_ai.request.model"] == facts["gen_ai.response.model"] == "org/tiny-model"
    assert facts["gen_ai.request.temperature"] == 0.5
    assert facts["gen_ai.request.stream"] is stream
    assert facts["gen_ai.usage.output_tokens"] == 1
    assert facts["gen_ai.usage.input_tokens"] >= 1
    assert facts["gen_ai.response.finish_reasons"] == ["stop"]
    assert 0.19 < facts["gen_ai.latency.time_to_first_token"] <= facts["gen_ai.latency.e2e"]
    assert facts["gen_ai.latency.time_in_queue"] == ENGINE.queue
    assert facts["gen_ai.operation.name"] in ("chat", "text_completion")
    assert not root.failed


def test_several_choices_and_prompts_each_have_theirs(collector: Collector) -> None:
    with gateway(collector) as running:
        ask(running, "/v1/completions", "many", prompt=["a", "b"], n=2)
        root, children = collector.request("many")
    choices = [(child.name, child.attributes["penstock.choice"]) for child in children]
    assert sorted(choices) == sorted(
        (name, choice) for name in ("queue", "prefill", "decode") for choice in range(4)
    )
    assert root.attributes["gen_ai.usage.num_sequences"] == 4
    assert root.attributes["gen_ai.response.finish_reasons"] == ["stop"] * 4
    assert root.attributes["gen_ai.usage.input_tokens"] == 2


@pytest.mark.parametrize(
    ("ratio", "flags", "traced"),
    [(1.0, "00", False), (0.0, "01", True), (0.0, None, False), (1.0, None, True)],
)
def test_the_parent_decides_and_without_one_the_ratio(
    collector: Collector, ratio: float, flags: str | None, traced: bool
) -> None:
    headers = () if flags is None else (f"traceparent: 00-{TRACE}-{PARENT}-{flags}",)
    with gateway(collector, trace_sample_ratio=ratio, slow_request_seconds=0) as running:
        ask(running, "/v1/completions", "asked", *headers)
        marker = f"traceparent: 00-{TRACE[::-1]}-{PARENT}-01"
        ask(running, "/v1/completions", "marker", marker)
        collector.request("marker")
        first, second = (generation.timing for generation in running.engine.generations)
    found = [
        span for span in collector.spans if span.attributes.get("gen_ai.request.id") != "marker"
    ]
    roots = [span for span in found if span.kind == SERVER]
    assert len(roots) == traced
    assert (first is not None) == traced, "the engine is asked for who is traced, and no others"
    assert second is not None
    if traced and flags is None:
        assert roots[0].parent == ""


@pytest.mark.parametrize(
    "given",
    [
        ("traceparent: nonsense",),
        (f"traceparent: 00-{'0' * 32}-{PARENT}-01",),
        (f"traceparent: 00-{TRACE}-{PARENT}-00", f"traceparent: 00-{TRACE}-{PARENT}-00"),
    ],
    ids=["no context", "all zeros", "twice"],
)
def test_a_context_that_is_none_begins_a_trace_of_its_own(
    collector: Collector, given: tuple[str, ...]
) -> None:
    with gateway(collector) as running:
        head, _ = ask(running, "/v1/completions", "odd", *given)
        root, _ = collector.request("odd")
    assert "200 ok" in head
    assert root.parent == ""
    assert root.trace != TRACE


def test_what_fails_says_how(collector: Collector) -> None:
    def script(prompt: list[int], params: Any) -> Any:
        yield [SequenceDelta(index=0, text="a", token_ids=[97])]
        yield RequestFailed("the kernel broke")

    with gateway(collector, FakeEngineClient(script)) as running:
        ask(running, "/v1/completions", "late", stream=True)
        ask(running, "/v1/completions", "whole")
        head, _ = ask(running, "/v1/completions", "bad", temperature=-1)
        late, _ = collector.request("late")
        whole, _ = collector.request("whole")
        bad, _ = collector.request("bad")
    assert "400" in head
    for root, status in ((late, 200), (whole, 500)):
        assert root.failed
        assert root.message == "the kernel broke"
        assert root.attributes["http.response.status_code"] == status
        assert root.attributes["error.type"] == "request_failed"
        assert "exception" in root.events
    assert late.attributes["gen_ai.response.finish_reasons"] == ["error"]
    assert late.attributes["gen_ai.usage.output_tokens"] == 1
    assert not bad.failed, "a client's mistake is no error of the server's"
    assert bad.attributes["http.response.status_code"] == 400
    assert bad.attributes["error.type"]


def test_a_client_that_leaves_ends_the_span(collector: Collector) -> None:
    with gateway(collector, FakeEngineClient(say("x" * 400))) as running:
        running.engine.script = lambda prompt, params: iter(
            [[SequenceDelta(index=0, text="a", token_ids=[97])], 60.0]
        )
        with running.connect() as connection:
            body = json.dumps({"prompt": "x", "stream": True}).encode()
            connection.post("/v1/completions", body, "x-request-id: gone")
            connection.read_until(b"data: ")
        root, _ = collector.request("gone")
    assert root.attributes["error.type"] == "client_disconnected"
    assert root.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert root.events == ["client disconnected"]
    assert not root.failed


def test_what_computes_nothing_is_not_traced(collector: Collector) -> None:
    with gateway(collector) as running:
        for path in ("/health/live", "/metrics", "/v1/models", "/nowhere"):
            with running.connect() as connection:
                connection.socket.sendall(
                    f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
                )
                connection.read_all()
        ask(running, "/v1/completions", "marker")
        collector.request("marker")
    assert [span.name for span in collector.spans if span.kind == SERVER] == [
        "POST /v1/completions"
    ]


def test_log_lines_of_a_traced_request_name_its_trace(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.process import logs

    logs.setup("test")
    parent = f"traceparent: 00-{TRACE}-{PARENT}-01"
    with gateway(collector, slow_request_seconds=0.1) as running:
        ask(running, "/v1/completions", "slow", parent)
        collector.request("slow")
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "slow request" in line)
    assert re.search(rf"request=slow trace_id={TRACE} ", line)


def test_a_collector_that_is_away_or_hangs_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 0.2 s each, with spans for which there is no room in the queue. Nobody would see
    the end of what the exporter waits for."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "3600")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    with socket.socket() as taken, socket.socket() as silent:
        taken.bind(("127.0.0.1", 0))  # and does not listen: refused
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)  # and never answers
        for away in (taken, silent):
            url = f"http://127.0.0.1:{away.getsockname()[1]}/v1/traces"
            config = GatewayConfig(otlp_traces_endpoint=url)
            with LiveGateway(TimedClient(), config=config) as running:
                for number in range(8):
                    head, data = ask(running, "/v1/completions", f"r{number}")
                    assert "200 ok" in head
                    assert json.loads(data)["choices"][0]["text"] == "a"


def test_leaving_sends_what_is_left_and_waits_for_nobody_for_long() -> None:
    """At the end of a process: spans that were to go in an hour go now; a collector that never
    answers costs two seconds, and the interpreter doesn't wait at its exit either."""
    code = """
import asyncio, os, sys
os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "3600000"
os.environ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"] = "3600"
from penstock_gateway.tracing.tracer import Tracing
async def main():
    tracing = Tracing(sys.argv[1], 1.0)
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    trace = tracing.begin(scope, "last")
    trace.end()
    tracing.finish(trace)
    await tracing.close()
asyncio.run(main())
"""
    assert FLUSH_WITHIN == 2.0
    for delay in (0.0, 3600.0):
        with Collector(delay) as collector:
            subprocess.run(
                [sys.executable, "-c", code, collector.url],
                capture_output=True,
                text=True,
                timeout=100,
                check=True,
            )
            assert len(collector.spans) == (not delay)


@pytest.mark.parametrize("url", ["collector:4317", "grpc://c:4317", "http://", ""])
def test_an_endpoint_that_is_none_is_a_clear_error(url: str) -> None:
    done = _penstock("--otlp-traces-endpoint", url)
    assert done.returncode == 2
    assert "--otlp-traces-endpoint" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_without_the_extra_it_is_one_clear_line() -> None:
    code = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.sdk") or name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
from penstock.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    done = _penstock("--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces", code=code)
    assert done.returncode == 1
    assert "pip install 'penstock-llm[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


def _penstock(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    start = ["-m", "penstock"] if code is None else ["-c", code]
    rest = ["gateway", "--engine-endpoint", "ipc:///nowhere", "--port", "0", *arguments]
    return subprocess.run(
        [sys.executable, *start, *rest], capture_output=True, text=True, timeout=200, check=False
    )


def test_where_it_is_off_nothing_of_it_is_loaded() -> None:
    """fastapi brings OpenTelemetry's API along; the SDK and its exporter are what weighs."""
    code = """
import sys
import penstock_gateway.process
from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import FakeEngineClient
app = create_app(FakeEngineClient(), GatewayConfig())
layers = [layer.cls.__name__ for layer in app.user_middleware]
print(app.state.service.tracing, layers)
heavy = ("opentelemetry.sdk", "opentelemetry.exporter", "google.protobuf", "requests",
    "penstock_gateway.tracing.tracer")
print([name for name in sys.modules if name.startswith(heavy)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["None ['_CorsForApps', 'Boundary', 'Access']", "[]"]


def test_a_websocket_is_a_span(collector: Collector) -> None:
    """With what the engine did for it inside."""
    with gateway(collector, Listener()) as running:
        with opened(running, additional_headers={"x-request-id": "spoken"}) as client:
            begin(client)
            append(client, speech())
            commit(client, final=True)
            while told(client)["type"] != "transcription.done":
                pass
        root, _ = collector.request("spoken")
    assert (root.name, root.kind) == ("GET /v1/realtime", SERVER)
    assert root.attributes["http.response.status_code"] == 101
    assert root.attributes["gen_ai.usage.output_tokens"] == 2
