"""CurveZMQ between real sockets on TCP: who gets in, who doesn't, and what is on the wire."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from penstock.cli.main import main
from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.transport.curve import AllowList, client_curve, gatekeeper, server_curve
from penstock.transport.curve_keys import load_public, make_folders
from penstock.transport.events import Opened
from penstock.transport.session_client import SessionClient
from penstock.transport.session_server import SessionServer
from tests.shared.transport.transport_wire import BOOT, Wire, opened, pump

ROLES = (["gateway"], ["worker"])


def settings(folder: Path | None, **more: Any) -> TransportSettings:
    return TransportSettings(
        beat_interval=0.1,
        peer_timeout=60.0,
        curve_dir=None if folder is None else str(folder),
        **more,
    )


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_folders(tmp_path / "keys", *ROLES)
    return tmp_path / "keys"


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as made:
        yield made


@pytest.fixture
def engine(context: zmq.Context, keys: Path) -> Iterator[tuple[Wire, str]]:
    """The engine core's server for front ends, on a free port of 127.0.0.1."""
    with gatekeeper(context, settings(keys / "engine")):
        wire = Wire(context, "tcp://127.0.0.1:*", settings=settings(keys / "engine"))
        yield wire, endpoint_of(wire)
        wire.server.close()


def endpoint_of(wire: Wire) -> str:
    return wire.server.socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")


def client(endpoint: str, folder: Path | None) -> SessionClient[Any]:
    # A context of its own, as another process has it.
    decoder: Any = msgspec.msgpack.Decoder(list)
    return SessionClient(zmq.Context(), endpoint, decoder, lambda: ["hello"], settings(folder))


def gets_in(engine: tuple[Wire, str], folder: Path | None, seconds: float = 60.0) -> bool:
    dialling = client(engine[1], folder)
    try:
        pump(engine[0], dialling, opened, seconds=seconds)
        return True
    except TimeoutError:
        assert not engine[0].of(Opened)
        return False
    finally:
        dialling.close()


def stays_out(engine: tuple[Wire, str], folder: Path | None) -> bool:
    return not gets_in(engine, folder, seconds=1.5)


def test_an_allowed_key_gets_in(engine: tuple[Wire, str], keys: Path) -> None:
    assert gets_in(engine, keys / "gateway")


@pytest.mark.parametrize("who", ["without keys", "a worker's key", "a stranger's", "other engine"])
def test_nobody_else_does(engine: tuple[Wire, str], keys: Path, tmp_path: Path, who: str) -> None:
    folder: Path | None = None
    if who == "a worker's key":
        folder = keys / "worker"
    elif who == "a stranger's":
        make_folders(tmp_path / "others", *ROLES)
        folder = tmp_path / "others" / "gateway"
        shutil.copy(keys / "gateway" / "engine.key", folder / "engine.key")
    elif who == "other engine":
        make_folders(tmp_path / "others", *ROLES)
        folder = keys / "gateway"
        shutil.copy(tmp_path / "others" / "gateway" / "engine.key", folder / "engine.key")
    assert stays_out(engine, folder)
    if who != "other engine":
        assert gets_in(engine, keys / "gateway"), "the refused one has shut out the others"


def test_a_key_that_is_refused_again_and_again_is_told_of_once(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = AllowList(keys / "engine" / "frontends")
    for number in range(50):
        assert not allowed.callback("frontends", b"%040d" % number)
    assert caplog.messages == ["a peer with a key that isn't allowed tried to connect"]


def test_a_key_that_is_added_or_taken_away_counts_at_once(
    engine: tuple[Wire, str], keys: Path
) -> None:
    make_folders(keys, ["gateway", "lab"], ["worker"])
    assert gets_in(engine, keys / "lab")
    engine[0].events.clear()
    (keys / "engine" / "frontends" / "lab.key").unlink()
    assert stays_out(engine, keys / "lab")
    assert gets_in(engine, keys / "gateway")


def test_nothing_can_be_read_on_the_wire(engine: tuple[Wire, str], keys: Path) -> None:
    """A relay in the middle sees the session's bytes; the same session in plain shows them."""
    wire, endpoint = engine
    with Relay(endpoint) as relay:
        dialling = client(relay.endpoint, keys / "gateway")
        pump(wire, dialling, opened)
        dialling.close()
    assert len(relay.seen) > 100
    assert b"hello" not in relay.seen
    assert b"welcome" not in relay.seen


def test_the_relay_would_have_seen_it(context: zmq.Context) -> None:
    hub_endpoint = "tcp://127.0.0.1:*"
    wire = Wire(context, hub_endpoint, settings=settings(None))
    with Relay(endpoint_of(wire)) as relay:
        dialling = client(relay.endpoint, None)
        pump(wire, dialling, opened)
        dialling.close()
    wire.server.close()
    assert b"hello" in relay.seen
    assert b"welcome" in relay.seen


class Relay:
    """Takes one TCP connection on to `endpoint`, and keeps what passes."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("tcp://").split(":")
        self._to = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.seen = bytearray()
        self._threads = [threading.Thread(target=self._run, daemon=True)]

    def __enter__(self) -> Relay:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        for thread in self._threads:
            thread.join(5)

    def _run(self) -> None:
        near, _ = self._server.accept()
        far = socket.create_connection(self._to)
        back = threading.Thread(target=self._copy, args=(far, near), daemon=True)
        self._threads.append(back)
        back.start()
        self._copy(near, far)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self.seen += data
                target.sendall(data)
        except OSError:
            pass  # The other direction has ended it.
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # Likewise.


def test_what_is_there_is_kept(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in keys.rglob("*") if file.is_file()}
    assert main(["curve-keys", str(keys), "--frontend", "lab"]) == 0
    assert {file: file.read_bytes() for file in before} == before
    made = capsys.readouterr().out.split()
    assert sorted(made) == sorted(
        str(keys / name)
        for name in ("lab/lab.key_secret", "lab/engine.key", "engine/frontends/lab.key")
    )
    for file in keys.rglob("*"):
        assert file.stat().st_mode & 0o077 == 0 or file.suffix == ".key", file


def test_a_lost_secret_is_made_again_and_allowed(keys: Path) -> None:
    listed = keys / "engine" / "frontends" / "gateway.key"
    old = load_public(listed)
    (keys / "gateway" / "gateway.key_secret").unlink()
    make_folders(keys, *ROLES)
    assert load_public(listed) != old


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda keys: (keys / "gateway" / "gateway.key_secret").unlink(), "0 files \\*.key_secret"),
        (lambda keys: (keys / "gateway" / "gateway.key_secret").chmod(0o644), "chmod o-r"),
        (lambda keys: (keys / "gateway" / "engine.key").unlink(), "engine.key can't be read"),
        (
            lambda keys: (keys / "gateway" / "engine.key").write_text('public-key = "short"'),
            "has 5 characters",
        ),
    ],
)
def test_a_wrong_folder_is_said_at_once(keys: Path, damage: Any, says: str) -> None:
    damage(keys)
    with pytest.raises(StartupError, match=says):
        client_curve("tcp://10.0.0.1:5570", settings(keys / "gateway"))


@pytest.mark.parametrize("endpoint", ["tcp://*:5570", "tcp://eth0:5570", "tcp://10.0.0.1:5570"])
def test_a_network_in_plain_is_refused_unless_asked_for(endpoint: str) -> None:
    for secured in (client_curve, lambda *a: server_curve(*a, "workers")):
        with pytest.raises(StartupError, match="--curve-dir"):
            secured(endpoint, settings(None))
        assert secured(endpoint, settings(None, allow_plain_tcp=True)) is None


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "ipc:///x", "tcp://lo:1"]
)
def test_this_machine_needs_no_keys(endpoint: str) -> None:
    assert client_curve(endpoint, settings(None)) is None


def test_one_name_for_two_roles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="a front end and of a worker"):
        make_folders(tmp_path, ["worker"], ["worker"])


def test_the_engine_core_needs_its_own_folder(context: zmq.Context, keys: Path) -> None:
    decoder: Any = msgspec.msgpack.Decoder(list)
    with pytest.raises(StartupError, match=r"engine\.key_secret can't be read"):
        SessionServer(context, "tcp://127.0.0.1:*", decoder, settings(keys / "gateway"), BOOT)
