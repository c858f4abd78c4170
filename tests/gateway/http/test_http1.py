"""What HTTP/1 asks of a server, and what clients may try with it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import SequenceDelta
from penstock.process import logs
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.http import protocol
from penstock_gateway.http.protocol import MOST_WAITING
from tests.gateway.fake_engine import FakeEngineClient, Step, say
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(180)

BODY = b'{"prompt": "Hi"}'
JAVA = """
import java.net.URI;
import java.net.http.*;

public class Ask {
  public static void main(String[] arguments) throws Exception {
    HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
        .header("content-type", "application/json")
        .POST(HttpRequest.BodyPublishers.ofString("{\\"prompt\\": \\"Hi\\"}")).build();
    HttpClient client = HttpClient.newHttpClient();
    for (int i = 0; i < 2; i++) {
      System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
    }
  }
}
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(FakeEngineClient(say("Hello"))) as gateway:
        yield gateway


def answers(gateway: LiveGateway, *pieces: bytes) -> bytes:
    """All that comes until the server closes."""
    with gateway.connect() as connection:
        for piece in pieces:
            connection.socket.sendall(piece)
            gateway.turn()
        return connection.read_all()


def post(*headers: str, path: str = "/v1/completions", body: bytes = BODY) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


LAST = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
UPGRADE = (
    "connection: Upgrade, HTTP2-Settings",
    "upgrade: h2c",
    "http2-settings: AAEAAEAAAAIAAAAB",
)
SHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


@pytest.mark.parametrize("split", [False, True])
def test_another_protocol_may_be_offered(gateway: LiveGateway, split: bool) -> None:
    pieces = [post(*UPGRADE), BODY[:5], BODY[5:], LAST]
    found = answers(gateway, *(pieces if split else [b"".join(pieces)]))
    assert found.count(b"HTTP/1.1 200") == 2
    assert b"101" not in found.partition(b"\r\n")[0]


@pytest.mark.parametrize("headers", [(), UPGRADE], ids=["plain", "upgrade"])
def test_as_many_requests_wait_on_a_connection_as_it_may_have(
    gateway: LiveGateway, caplog: pytest.LogCaptureFixture, headers: tuple[str, ...]
) -> None:
    """They come in one piece, each of which is read before the first is answered."""
    one = "\r\n".join(["GET /version HTTP/1.1", "host: localhost", *headers]).encode() + b"\r\n\r\n"
    assert answers(gateway, one * MOST_WAITING + LAST).count(b"HTTP/1.1 200") == MOST_WAITING + 1
    with gateway.held(), gateway.connect() as connection:
        connection.socket.sendall(one * 600)
    with gateway.connect() as connection:
        with gateway.held():
            connection.socket.sendall(one * 600)
        found = connection.read_all()
    assert found.startswith(b"HTTP/1.1 400")
    assert b"requests wait on this connection" in found
    assert "Fatal error" not in caplog.text


def endless(prompt: list[int], params: SamplingParams) -> Iterator[Step]:
    while True:
        yield [SequenceDelta(index=0, text="tick ", token_ids=[65], finish_reason=None, error=None)]
        yield 0.01


@pytest.mark.parametrize("behind", [b"", b"GET /version HTTP/1.1\r\nhost : a\r\n\r\n", SHAKE])
def test_what_waits_behind_a_stream_leaves_its_end_alone(behind: bytes) -> None:
    """The generation ends with the connection, and no error is written into the stream."""
    engine = FakeEngineClient(endless)
    with LiveGateway(engine) as gateway, gateway.connect() as connection:
        connection.post("/v1/completions", b'{"prompt": "Hi", "stream": true}')
        seen = connection.read_until(b"tick")
        connection.socket.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2 + behind)
        if behind:
            with contextlib.suppress(ConnectionError):
                seen += connection.read_all()
            assert b"HTTP/1.1 400" not in seen
            assert b"HTTP/1.1 101" not in seen
        else:
            gateway.turn()
            connection.socket.close()
        end = time.monotonic() + 60
        while gateway.service.open_requests and time.monotonic() < end:
            time.sleep(0.01)
        assert engine.generations[0].aborted.is_set()
        assert gateway.service.open_requests == 0


def test_a_stream_over_http_1_0_ends_with_its_connection(gateway: LiveGateway) -> None:
    body = b'{"prompt": "Hi", "stream": true}'
    head = post(body=body).replace(b"HTTP/1.1", b"HTTP/1.0")
    found, _, text = answers(gateway, head + body).partition(b"\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in found
    assert text.startswith(b"data: {")
    assert text.endswith(b"data: [DONE]\n\n")


def test_http_1_0_knows_no_100(gateway: LiveGateway) -> None:
    head = post("expect: 100-continue")
    assert answers(gateway, head, BODY, LAST).startswith(b"HTTP/1.1 100")
    old = head.replace(b"HTTP/1.1", b"HTTP/1.0")
    assert answers(gateway, old, BODY).startswith(b"HTTP/1.1 200")


def test_a_whole_answer_over_http_1_0_has_its_length(gateway: LiveGateway) -> None:
    found, _, text = answers(gateway, b"GET /version HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert f"content-length: {len(text)}".encode() in found.lower()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /version HTTP/1.1\r\n\r\n",
        b"GET /version HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost:80\r\n\r\n",
        b"POST /version HTTP/1.1\r\nhost: l\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /version HTTP/1.1\r\nhost: l\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /version HTTP/1.1\r\nhost: l\r\ntransfer-encoding: x, identity\r\n\r\nab",
        b"POST /version HTTP/1.1\r\nhost: l\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /version HTTP/1.1\r\nhost: l\r\ncontent-length: +2\r\n\r\nab",
        b"GET /version HTTP/1.1\r\nhost : localhost\r\n\r\n",
        b"GET /version HTTP/1.1\r\nhost: l\r\nx: a\r\x00b\r\n\r\n",
        b"POST /version HTTP/1.1\r\nhost: l\r\ntransfer-encoding: chunked\r\n\r\n"
        b"fffffffffffffffff\r\nab",
    ],
)
def test_what_two_servers_might_read_differently_is_refused(
    gateway: LiveGateway, request_: bytes
) -> None:
    """And nothing behind it is read as a request."""
    found = answers(gateway, request_ + LAST)
    assert b"HTTP/1.1 200" not in found
    assert found.startswith((b"HTTP/1.1 400", b"HTTP/1.1 405", b"HTTP/1.1 501"))


def test_requests_that_are_none_fill_no_log(
    gateway: LiveGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_note_refusal", logs.Seldom(protocol.log.warning))
    for _ in range(5):
        assert answers(gateway, b"\x16\x03\x01\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert [each.message for each in caplog.records] == ["a request that can't be read was refused"]


def test_a_target_of_another_host_is_no_way_in(gateway: LiveGateway) -> None:
    found = answers(
        gateway,
        b"GET http://evil.example/version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    assert found.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404"))


def test_java_as_it_comes(gateway: LiveGateway, tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.skip("there is no Java to compile a file with: install a JDK")
    (tmp_path / "Ask.java").write_text(JAVA)
    command = [java, "-XX:TieredStopAtLevel=1", "Ask.java", f"{gateway.url}/v1/completions"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["200", "200"], done.stderr
