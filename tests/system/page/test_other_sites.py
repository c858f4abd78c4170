"""What a page of another site does to a server on its reader's machine: nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway
from tests.system.page.conftest import chromium

pytestmark = pytest.mark.timeout(180)

REBOUND = "rebound.example"
"""A name whose owner has it point at this machine, once the page is loaded."""

SEND = """async ([address, options]) => {
  try {
    await fetch(address, {...options, signal: AbortSignal.timeout(60000)});
    return "sent";
  } catch (error) { return "refused"; }
}"""
READ = """async (path) => {
  const reply = await fetch(path, {signal: AbortSignal.timeout(60000)});
  return [reply.status, await reply.text()];
}"""
FORM = """(address) => {
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: address, target: "elsewhere"});
  const frame = document.createElement("iframe");
  frame.name = "elsewhere";
  document.body.append(form, frame);
  form.submit();
}"""
LISTEN = """(address) => new Promise((done) => {
  const socket = new WebSocket(address);
  socket.onopen = () => done("open");
  socket.onerror = () => done("refused");
})"""


def until(condition: Callable[[], bool], again: Callable[[], object]) -> None:
    """Waits. again: done once more after some seconds: on a busy machine a browser may lose the
    form of a frame that is just being made."""
    deadline = time.monotonic() + 60
    repeat = time.monotonic() + 10
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError
        if time.monotonic() > repeat:
            again()
            repeat += 10
        time.sleep(0.02)


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of another site, on loopback too."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Page)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(60)


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(FakeEngineClient()) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def pages() -> Iterator[object]:
    with chromium(
        f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1, MAP evil.example 127.0.0.1"
    ) as running:
        yield running.new_context()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", "localhost"])
def test_a_page_of_another_site_does_not_pause_it(
    pages: object, site: int, gateway: LiveGateway, name: str
) -> None:
    page = pages.new_page()  # type: ignore[attr-defined]
    page.goto(f"http://{name}:{site}/")
    for host in ("127.0.0.1", "localhost"):
        address = f"http://{host}:{gateway.port}"
        plain = {"method": "POST", "mode": "no-cors"}
        # The browser sends it, and tells the page nothing.
        assert page.evaluate(SEND, [f"{address}/pause", plain]) == "sent"
        typed = {**plain, "headers": {"content-type": "text/plain"}, "body": '{"prompt": "Hi"}'}
        assert page.evaluate(SEND, [f"{address}/v1/completions", typed]) == "sent"
        refused = gateway.service.responses[403]
        send = partial(page.evaluate, FORM, f"{address}/pause")
        send()
        until(lambda before=refused: gateway.service.responses[403] > before, send)  # type: ignore[misc]
        assert page.evaluate(SEND, [f"{address}/v1/models", {}]) == "refused"
        assert page.evaluate(LISTEN, f"ws://{host}:{gateway.port}/v1/realtime") == "refused"
    page.close()
    assert gateway.engine.pauses == []
    assert gateway.engine.submitted == []


def test_a_page_whose_name_was_rebound_reads_and_changes_nothing(
    pages: object, gateway: LiveGateway
) -> None:
    page = pages.new_page()  # type: ignore[attr-defined]
    page.goto(f"http://{REBOUND}:{gateway.port}/health/live")
    for path in ("/v1/files", "/v1/models", "/status", "/metrics", "/openapi.json", "/live"):
        status, text = page.evaluate(READ, path)
        assert status == 403
        assert "--allowed-hosts" in text
    assert page.evaluate(SEND, ["/pause", {"method": "POST"}]) == "sent"
    assert page.evaluate(LISTEN, f"ws://{REBOUND}:{gateway.port}/v1/realtime") == "refused"
    page.close()
    assert gateway.engine.pauses == []


def test_its_own_page_and_a_link_to_it_work(pages: object, site: int, gateway: LiveGateway) -> None:
    page = pages.new_page()  # type: ignore[attr-defined]
    page.goto(f"http://evil.example:{site}/")
    page.evaluate("(address) => { location.href = address; }", f"{gateway.url}/")
    page.wait_for_url(f"{gateway.url}/")
    assert page.evaluate(READ, "/v1/models")[0] == 200
    assert page.evaluate(LISTEN, f"ws://127.0.0.1:{gateway.port}/v1/realtime") == "open"
    assert page.evaluate(SEND, ["/pause", {"method": "POST"}]) == "sent"
    page.close()
    assert gateway.engine.pauses == [(True, True)]
