"""A whole system that serves HTTPS by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.http_client import HttpClient
from testing.serving import PATIENCE, Server, wait_until
from tests.gateway.certificates import make_certificate

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def test_it_is_ready_answers_and_restarts_its_gateways(
    start_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path, "system")
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    server = start_server("--ssl-certfile", certificate, "--ssl-keyfile", key)
    assert server.url.startswith("https://127.0.0.1:")
    client = HttpClient(server.url, None, PATIENCE)
    body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0, "stream": True}
    before = list(client.events("/v1/completions", body))
    assert before
    gateway = server.child("gateway 0")
    server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: "gateways restarted" in server.stderr, 2 * PATIENCE, lambda: server.stderr)
    assert server.child("gateway 0") != gateway
    after = list(client.events("/v1/completions", body))
    texts = [[event["choices"][0]["text"] for event in events] for events in (before, after)]
    assert "".join(texts[0]) == "".join(texts[1])
