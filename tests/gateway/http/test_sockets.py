"""What only shows on a real connection: held headers, keep-alives, disconnects, bounds."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.config.settings import GatewayConfig
from penstock.errors import EngineUnavailable, InvalidRequest, Overloaded, RequestFailed
from penstock.process.logs import LogfmtFormatter
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.service import Patience
from tests.gateway import sse
from tests.gateway.fake_engine import FakeEngineClient, Step, say
from tests.gateway.http.scripts import (
    CHAT,
    SOON,
    body,
    delta,
    endless,
    silence,
    steps,
    unchunked,
    until,
)
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(300)


def test_stream_on_the_wire(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(say("Hé")))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True), "connection: close", "x-request-id: r1")
        head, text = unchunked(connection.read_all())
    assert head.startswith(b"HTTP/1.1 200")
    assert b"x-request-id: r1" in head.lower()
    assert b"cache-control: no-cache" in head.lower()
    assert sse.text_of(sse.parse(text)) == "Hé0"


def test_sequences_of_one_step_leave_in_one_send(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(say("a")))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True, n=3), "connection: close")
        data = connection.read_all().partition(b"\r\n\r\n")[2]
    first = data[data.index(b"\r\n") + 2 :][: int(data.partition(b"\r\n")[0], 16)]
    # Three roles and three first tokens.
    assert first.count(b"data: ") == 6


def test_headers_wait_for_the_first_token(start: Callable[..., LiveGateway]) -> None:
    comes = threading.Event()
    engine = FakeEngineClient(lambda *_: itertools.chain(silence(comes), [[delta("x", "stop")]]))
    gateway = start(engine)
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True), "connection: close")
        until(lambda: bool(engine.generations))
        connection.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.socket.recv(1)
        comes.set()
        connection.socket.settimeout(SOON)
        assert b"data: [DONE]" in connection.read_all()


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (EngineUnavailable("gone"), 503),
        (Overloaded("full", retry_after=2.5), 503),
        (RequestFailed("broke"), 500),
        (InvalidRequest("too late"), 400),
        ([delta("", "timeout")], 408),
        ([delta("", "error", "worker died twice")], 500),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_failure_before_the_first_token_has_its_status(
    start: Callable[..., LiveGateway], failure: Step, status: int, stream: bool
) -> None:
    gateway = start(FakeEngineClient(steps(0.01, failure)))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=stream), "connection: close")
        head, _, data = connection.read_all().partition(b"\r\n\r\n")
    head = head.lower()
    assert head.startswith(f"http/1.1 {status}".encode())
    assert (b"retry-after: " in head) == (status == 503)
    if isinstance(failure, Overloaded):
        assert b"retry-after: 3\r\n" in head + b"\r\n"
    assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("failure", "told"), [([delta("", "error", "worker died twice")], True), (KeyError("x"), False)]
)
def test_only_what_nobody_expects_is_logged_with_a_traceback(
    start: Callable[..., LiveGateway],
    caplog: pytest.LogCaptureFixture,
    failure: Step,
    told: bool,
) -> None:
    gateway = start(FakeEngineClient(steps(failure)))
    with gateway.connect() as connection:
        connection.post(CHAT, body(), "connection: close")
        assert connection.read_all().startswith(b"HTTP/1.1 500")
    (record,) = (each for each in caplog.records if each.message == "request failed")
    assert record.levelno == logging.ERROR
    assert (not record.exc_info) == told
    assert ('reason="worker died twice"' in LogfmtFormatter("gateway").format(record)) == told


@pytest.mark.parametrize(
    "failure", [RequestFailed("broke"), [delta("", "error", "broke")], ValueError("a bug")]
)
def test_failure_in_mid_stream_is_an_event(
    start: Callable[..., LiveGateway], failure: Step
) -> None:
    gateway = start(FakeEngineClient(steps([delta("a")], 0.01, failure)))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True), "connection: close")
        head, text = unchunked(connection.read_all())
    assert head.startswith(b"HTTP/1.1 200")
    *chunks, last = sse.parse(text)
    assert sse.text_of(chunks) == "a"
    assert last["error"]["type"] == "server_error"
    # A bug's own words stay in the log.
    assert ("broke" in last["error"]["message"]) == ("bug" not in str(failure))
    until(lambda: gateway.service.open_requests == 0)


def test_failure_keeps_what_came_before_it(start: Callable[..., LiveGateway]) -> None:
    gateway = start(FakeEngineClient(steps([delta("a")], [delta("b"), delta("", "error", "x")])))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True), "connection: close")
        *chunks, last = sse.parse(unchunked(connection.read_all())[1])
    assert sse.text_of(chunks) == "ab"
    assert last["error"]["message"] == "x"


def test_keep_alive(start: Callable[..., LiveGateway]) -> None:
    first, second = threading.Event(), threading.Event()

    def script(prompt: list[int], params: SamplingParams) -> Iterator[Step]:
        yield from silence(first)
        yield [delta("a")]
        yield from silence(second)
        yield [delta("b", "stop")]

    gateway = start(FakeEngineClient(script), config=GatewayConfig(keepalive_interval=0.1))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True), "connection: close")
        data = b"".join(connection.read_until(b": ping\n") for _ in range(2))
        first.set()
        data += connection.read_until(b"data: ")
        while data.partition(b"data: ")[2].count(b": ping\n") < 2:
            data += connection.read_until(b": ping\n")
        second.set()
        _, text = unchunked(data + connection.read_all())
    before, _, after = text.partition("data: ")
    assert before.count(": ping\n") >= 2
    assert after.count(": ping\n") >= 2
    assert ": ping\n\n" not in text
    assert "\nid:" not in text
    assert sse.text_of(sse.parse(text)) == "ab"


def test_no_keep_alive_while_tokens_flow(start: Callable[..., LiveGateway]) -> None:
    interval, moments = 0.3, []

    def script(prompt: list[int], params: SamplingParams) -> Iterator[Step]:
        for _ in range(20):
            moments.append(time.monotonic())
            yield [delta("a")]
            yield 0.02
        moments.append(time.monotonic())
        yield [delta("", "stop")]

    gateway = start(FakeEngineClient(script), config=GatewayConfig(keepalive_interval=interval))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True), "connection: close")
        pings = connection.read_all().count(b": ping")
    # None, unless the machine itself stood still for so long.
    assert pings <= sum(b - a > interval / 2 for a, b in itertools.pairwise(moments))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_disconnect_aborts_at_once(
    start: Callable[..., LiveGateway], stream: bool, reset: bool
) -> None:
    engine = FakeEngineClient(endless)
    gateway = start(engine)
    connection = gateway.connect()
    connection.post(CHAT, body(stream=stream, n=1))
    if stream:
        connection.read_until(b"tick")
    until(lambda: len(engine.generations) == 1)
    assert gateway.service.open_requests == 1
    if reset:
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.socket.close()
    until(engine.generations[0].aborted.is_set)
    until(lambda: gateway.service.open_requests == 0)


def test_disconnect_aborts_every_prompt(start: Callable[..., LiveGateway]) -> None:
    engine = FakeEngineClient(endless)
    gateway = start(engine)
    connection = gateway.connect()
    prompts = json.dumps({"prompt": ["a", "b", "c"], "stream": True}).encode()
    connection.post("/v1/completions", prompts)
    connection.read_until(b"tick")
    connection.socket.close()
    until(lambda: all(generation.aborted.is_set() for generation in engine.generations))
    assert len(engine.generations) == 3


def test_refused_prompt_aborts_the_others(start: Callable[..., LiveGateway]) -> None:
    engine = FakeEngineClient(endless)
    engine.refusal, engine.refuse_after = Overloaded("full", retry_after=1), 2
    gateway = start(engine)
    with gateway.connect() as connection:
        connection.post("/v1/completions", b'{"prompt": ["a", "b", "c"]}', "connection: close")
        assert connection.read_all().startswith(b"HTTP/1.1 503")
    assert len(engine.generations) == 2
    until(lambda: all(generation.aborted.is_set() for generation in engine.generations))


def test_client_that_never_reads_is_cut(start: Callable[..., LiveGateway]) -> None:
    def flood(prompt: list[int], params: SamplingParams) -> Iterator[Step]:
        while True:
            yield [delta("x" * 50_000)]

    engine = FakeEngineClient(flood)
    gateway = start(engine, patience=Patience(reader=0.5))
    with gateway.connect() as connection:
        begun = time.monotonic()
        connection.post(CHAT, body(stream=True))
        until(lambda: bool(engine.generations))
        until(engine.generations[0].aborted.is_set)
        assert time.monotonic() - begun > 0.4
        # What the kernel had taken still arrives, and then it is over in mid-sentence.
        assert not connection.read_all().endswith(b"0\r\n\r\n")


def test_leaving_lets_open_requests_finish(start: Callable[..., LiveGateway]) -> None:
    script = steps([delta("a")], 0.5, [delta("b", "stop")])
    gateway = start(FakeEngineClient(script), config=GatewayConfig(shutdown_timeout=600))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=True))
        connection.read_until(b'"a"')
        gateway.leave()
        rest = connection.read_all()
    assert b'"b"' in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    until(lambda: refused(gateway))


def refused(gateway: LiveGateway) -> bool:
    try:
        gateway.connect().socket.close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_tells_those_who_run_out_of_time(
    start: Callable[..., LiveGateway], stream: bool
) -> None:
    engine = FakeEngineClient(endless)
    gateway = start(engine, config=GatewayConfig(shutdown_timeout=0.2))
    with gateway.connect() as connection:
        connection.post(CHAT, body(stream=stream))
        until(lambda: bool(engine.generations))
        if stream:
            connection.read_until(b"tick")
        gateway.leave()
        answer = connection.read_all()
    if stream:
        assert b'data: {"error":' in answer
        assert b"shutting down" in answer
        assert b"[DONE]" in answer
    else:
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"shutting down" in answer
    assert engine.generations[0].aborted.is_set()
