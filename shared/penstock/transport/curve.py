"""CurveZMQ: authenticates and encrypts connections to the engine core over a network.

`curve_keys` makes and reads the files.  The handshake: http://curvezmq.org; asking whether a key is
allowed: ZAP, https://rfc.zeromq.org/spec/27.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import zmq
import zmq.auth

from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.process import logs
from penstock.transport.curve_keys import load_public, load_secret

log = logs.get(__name__)

Peers = Literal["frontends", "workers"]

MAX_KEYS = 4096
"""Public keys in a folder of those who may dial."""


class ClientCurve:
    """A front end's or worker's own key, and its engine core's public one."""

    def __init__(self, folder: Path) -> None:
        secrets = sorted(folder.glob("*.key_secret"))
        if len(secrets) != 1:
            raise StartupError(
                f"{folder} holds {len(secrets)} files *.key_secret where one is needed:"
                " `penstock curve-keys` makes such folders"
            )
        self._public, self._secret = load_secret(secrets[0])
        self._engine = load_public(folder / "engine.key")

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """To be called before the socket connects."""
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        socket.curve_serverkey = self._engine


class ServerCurve:
    """The engine core's own key, for the socket where `peers` dial in."""

    def __init__(self, folder: Path, peers: Peers) -> None:
        self._public, self._secret = load_secret(folder / "engine.key_secret")
        self._peers = peers
        AllowList(folder / peers)  # Raises early, and once.

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """To be called before the socket is bound."""
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        socket.curve_server = True
        socket.zap_domain = self._peers.encode()


class AllowList:
    """The public keys in a folder, read again when it changes: a key that is put there or taken
    away counts from the next connection on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed: int | None = None
        self._keys: frozenset[bytes] = frozenset()
        self._refused = logs.Seldom(log.warning)
        self._unread = logs.Seldom(log.error)
        self._read()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the public key (Z85) may dial: what pyzmq's authenticator asks."""
        try:
            self._read()
        except StartupError as error:
            self._unread(
                "the allowed keys can't be read; the previous ones stay in force", why=str(error)
            )
        allowed = key in self._keys
        if not allowed:
            self._refused(
                "a peer with a key that isn't allowed tried to connect",
                peers=domain,
                key=key.decode(),
            )
        return allowed

    def _read(self) -> None:
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError as error:
            raise StartupError(f"{self._folder} can't be read: {error.strerror}") from None
        if changed == self._changed:
            return
        files = sorted(self._folder.glob("*.key"))
        if len(files) > MAX_KEYS:
            raise StartupError(f"{self._folder} holds {len(files)} keys; allowed: {MAX_KEYS}")
        self._keys, self._changed = frozenset(map(load_public, files)), changed


@contextmanager
def gatekeeper(context: zmq.Context[Any], settings: TransportSettings) -> Iterator[None]:
    """Answers, in a thread of its own, which peers may connect to the context's sockets."""
    if settings.curve_dir is None:
        yield
        return
    from zmq.auth.thread import ThreadAuthenticator

    folder = Path(settings.curve_dir)
    authenticator = ThreadAuthenticator(context)
    for peers in ("frontends", "workers"):
        authenticator.configure_curve_callback(peers, AllowList(folder / peers))
    authenticator.start()
    try:
        yield
    finally:
        authenticator.stop()


def client_curve(endpoint: str, settings: TransportSettings) -> ClientCurve | None:
    """What a socket that dials `endpoint` needs; None: nothing.

    Raises StartupError where a folder is wrong, or a network would be used in plain, unasked.
    """
    if not needs_keys(endpoint, settings) or settings.curve_dir is None:
        return None
    return ClientCurve(Path(settings.curve_dir))


def server_curve(endpoint: str, settings: TransportSettings, peers: Peers) -> ServerCurve | None:
    """What the engine core's socket that `peers` dial needs; None: nothing. Raises as
    client_curve."""
    if not needs_keys(endpoint, settings) or settings.curve_dir is None:
        return None
    return ServerCurve(Path(settings.curve_dir), peers)


def needs_keys(endpoint: str, settings: TransportSettings) -> bool:
    """Whether the endpoint is to be secured: tcp:// where there is a folder of keys.

    Raises StartupError for tcp:// to or from other machines without keys, unless that is allowed.
    """
    if not endpoint.startswith("tcp://"):
        return False
    if settings.curve_dir is not None:
        return True
    if not settings.allow_plain_tcp and not is_loopback(endpoint):
        raise StartupError(
            f"{endpoint} is open to other machines, and there is no --curve-dir: make keys with"
            " `penstock curve-keys`, or say --allow-plain-tcp if the network is trusted with every"
            " prompt and whoever reaches it may use the engine core"
        )
    return False


def is_loopback(endpoint: str) -> bool:
    """Whether a tcp:// endpoint (interface, address or name) stays on this machine."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host in ("localhost", "lo"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
