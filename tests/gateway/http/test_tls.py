"""HTTPS by the gateway itself."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.cli.http_client import HttpClient, Unreachable
from penstock.cli.main import main
from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.net.tls import client_context, server_context
from penstock.supervisor.waiting import gateway_ready, http_ready
from penstock_gateway.system.admin import serving
from tests.gateway import sse
from tests.gateway.certificates import make_certificate
from tests.gateway.fake_engine import HELLO, FakeEngineClient, say
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(120)
BODY = {"prompt": "Hi", "max_tokens": 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "gateway")


@pytest.fixture
def config(files: tuple[str, str]) -> GatewayConfig:
    return GatewayConfig(ssl_certfile=files[0], ssl_keyfile=files[1])


@pytest.fixture
def gateway(config: GatewayConfig) -> Iterator[LiveGateway]:
    with LiveGateway(FakeEngineClient(), config) as gateway:
        yield gateway


def trusting(files: tuple[str, str]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files[0])


@pytest.mark.parametrize("one_file", [False, True])
def test_answers_and_streams(files: tuple[str, str], tmp_path: Path, one_file: bool) -> None:
    config = GatewayConfig(ssl_certfile=files[0], ssl_keyfile=files[1])
    if one_file:
        both = tmp_path / "both.pem"
        both.write_text("".join(Path(name).read_text() for name in files))
        config = GatewayConfig(ssl_certfile=str(both))
    engine = FakeEngineClient(say("x" * 2000))
    with LiveGateway(engine, config) as gateway:
        url = f"https://localhost:{gateway.port}/v1/completions"
        with httpx.Client(verify=trusting(files), timeout=60) as client:
            whole = client.post(url, json=BODY)
            assert whole.status_code == 200
            text = whole.json()["choices"][0]["text"]
            assert len(text) > 2000
            streamed = client.post(url, json={**BODY, "stream": True})
            pieces = [chunk["choices"][0]["text"] for chunk in sse.parse(streamed.text)]
            assert "".join(pieces) == text


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_a_client_that_does_not_trust_it_or_speaks_no_tls_gets_nothing(
    gateway: LiveGateway,
) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://localhost:{gateway.port}/version")
    with gateway.connect() as plain:
        plain.post("/v1/completions", json.dumps(BODY).encode())
        assert b"200" not in plain.read_all()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        pytest.raises((ssl.SSLError, OSError)),
        socket.create_connection(("127.0.0.1", gateway.port), 60) as connection,
    ):
        old.wrap_socket(connection)


def test_the_commands_trust_what_the_system_trusts(
    gateway: LiveGateway, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://localhost:{gateway.port}"
    with pytest.raises(Unreachable):
        HttpClient(url, None, 60).first_model()
    monkeypatch.setenv("SSL_CERT_FILE", files[0])
    client = HttpClient(url, None, 60)
    assert client.first_model() == gateway.engine.welcome.model
    events = client.events("/v1/completions", {**BODY, "stream": True})
    assert "".join(event["choices"][0]["text"] for event in events) == f"{HELLO}0"


COMMANDS = (
    ("health", "{url}/health/live"),
    ("status", "--url", "{url}"),
    (
        "bench",
        "serve",
        "--url",
        "{url}",
        "--requests",
        "1",
        "--input-len",
        "8",
        "--no-check-length",
    ),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_commands_trust_whom_they_are_told_to(
    gateway: LiveGateway,
    files: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    url = f"https://localhost:{gateway.port}"
    words = [word.format(url=url) for word in command]
    assert main(words) == 1
    said = capsys.readouterr()
    assert f"the certificate of {url}" in said.out + said.err
    assert "--cacert FILE, or trust any with --insecure" in said.out + said.err
    assert main([*words, "--cacert", files[0]]) == 0
    assert main([*words, "--insecure"]) == 0


def test_whom_to_trust_must_make_sense(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["health", "https://localhost:9/health/live"]
    for more, says in (
        (["--cacert", str(tmp_path / "none.pem")], "none.pem: No such file"),
        (["--cacert", files[1]], "holds no certificate in PEM"),
        (["--cacert", files[0], "-k"], "--cacert says whom to trust and --insecure trusts all"),
    ):
        assert main([*ask, *more]) == 2
        assert says in capsys.readouterr().err


def test_https_where_only_http_is_spoken(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveGateway(FakeEngineClient()) as plain:
        assert main(["health", f"https://127.0.0.1:{plain.port}/health/live"]) == 1
    assert "is it http:// instead of https://?" in capsys.readouterr().out


async def test_the_supervisor_asks_over_tls(gateway: LiveGateway, config: GatewayConfig) -> None:
    """Whatever names the certificate is for."""
    tls = client_context(config)
    await asyncio.wait_for(http_ready("127.0.0.1", gateway.port, tls), 60)
    await asyncio.wait_for(gateway_ready("127.0.0.1", gateway.port, os.getpid, tls), 60)
    assert client_context(GatewayConfig()) is None


async def test_the_admin_port_speaks_it_too(
    gateway: LiveGateway, files: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock_gateway.system.admin")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        async with (
            serving(gateway.service, sock),
            httpx.AsyncClient(verify=trusting(files), timeout=60) as client,
        ):
            answer = await client.get(f"https://localhost:{port}/health/live")
    assert answer.status_code == 200
    (said,) = (record for record in caplog.records if record.message == "admin port")
    assert vars(said)["penstock_fields"] == {"url": f"https://127.0.0.1:{port}"}


def test_files_that_will_not_do_are_one_clear_line(files: tuple[str, str], tmp_path: Path) -> None:
    certificate, key = files
    other = make_certificate(tmp_path, "other")
    locked = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    text = tmp_path / "text.pem"
    text.write_text("hello")
    for given, says in (
        ((None, key), "--ssl-keyfile needs --ssl-certfile"),
        ((str(tmp_path / "none.pem"), key), "--ssl-certfile .*none.pem: No such file"),
        ((certificate, str(tmp_path)), "--ssl-keyfile .*: Is a directory"),
        ((certificate, None), "must hold a certificate and its private key in PEM"),
        ((certificate, other[1]), "--ssl-keyfile .*other.key is not the key of"),
        ((str(text), key), "text.pem and --ssl-keyfile .* can't be used"),
        (locked, "the key is encrypted"),
    ):
        config = GatewayConfig(ssl_certfile=given[0], ssl_keyfile=given[1])
        with pytest.raises(StartupError, match=says):
            server_context(config)
    assert server_context(GatewayConfig()) is None
