"""CurveZMQ: authenticates and encrypts connections to the engine core over a network.

`curve_keys` makes and reads the files.  The handshake: http://curvezmq.org; asking whether a key is
allowed: ZAP, https://rfc.zeromq.org/spec/27.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import zmq
import zmq.auth

from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.process import logs

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


# CurveZMQ keys on disk: a folder for each role, in pyzmq's files.
#
# engine/   engine.key_secret   frontends/*.key   workers/*.key    who may dial, by public key
# gateway/  gateway.key_secret  engine.key                         its own, and whom to expect
# worker/   worker.key_secret   engine.key


def load_public(file: Path) -> bytes:
    """The public key, Z85. Raises StartupError."""
    return _load(file)[0]


def load_secret(file: Path) -> tuple[bytes, bytes]:
    """(public, secret), Z85. Raises StartupError, also for a file that everybody may read."""
    public, secret = _load(file)
    if secret is None:
        raise StartupError(f"{file} holds no secret key")
    if file.stat().st_mode & stat.S_IROTH:
        raise StartupError(f"everybody on this machine may read {file}: chmod o-r")
    return public, secret


def _load(file: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        raise StartupError(f"{file} can't be read as a CurveZMQ key: {error}") from None
    for key in (public, secret):
        if key is not None and len(key) != 40:
            raise StartupError(f"a key in {file} has {len(key)} characters; a Z85 key has 40")
    return public, secret


def make_folders(base: Path, frontends: Sequence[str], workers: Sequence[str]) -> list[Path]:
    """Makes the engine's folder, and one for each front end and worker, where they are missing;
    what is there is kept.  Returns the files made.

    A key made again takes the place of the old one in the list of those who may dial.  Raises
    StartupError where that can't be done, or a front end and a worker have the same name.
    """
    if shared := set(frontends) & set(workers):
        raise StartupError(f"{shared.pop()} is the name of a front end and of a worker")
    made: list[Path] = []
    engine = base / "engine"
    try:
        public = _make_key(engine, "engine", made)
        for peers, names in (("frontends", frontends), ("workers", workers)):
            (engine / peers).mkdir(mode=0o700, exist_ok=True)
            for name in names:
                own = _make_key(base / name, name, made)
                _copy_public(own, engine / peers / f"{name}.key", made)
                _copy_public(public, base / name / "engine.key", made)
    except OSError as error:
        raise StartupError(f"no keys can be made in {base}: {error}") from None
    return made


def _make_key(folder: Path, name: str, made: list[Path]) -> bytes:
    """The public key of the pair in the folder, which is made if there is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = folder / f"{name}.key_secret"
    if not secret.exists():
        umask = os.umask(0o077)
        try:
            # The secret one gets its name last: half a pair is made again.
            parts = folder / ".making"
            parts.mkdir(exist_ok=True)
            zmq.auth.create_certificates(parts, name)
            (parts / f"{name}.key").unlink()
            (parts / secret.name).rename(secret)
            parts.rmdir()
        finally:
            os.umask(umask)
        made.append(secret)
    return load_secret(secret)[0]


def _copy_public(key: bytes, file: Path, made: list[Path]) -> None:
    if file.exists() and load_public(file) == key:
        return
    new = file.with_suffix(".new")
    new.write_text(f'curve\n    public-key = "{key.decode()}"\n', encoding="ascii")
    new.rename(file)
    made.append(file)
