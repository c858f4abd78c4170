"""CurveZMQ between the workers of several engine cores.

They have one key together: the pair in the folder that each has for its own engine core. A process
with that key is taken for a worker.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zmq

from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.transport.curve import needs_keys
from penstock.transport.curve_keys import load_secret

DOMAIN = "kv"


class KVKeys:
    """Secures sockets where their endpoint needs it. To be closed before its context ends."""

    def __init__(self, context: zmq.Context[Any], transport: TransportSettings) -> None:
        self._context = context
        self._transport = transport
        self._closing = ExitStack()
        self._authenticates = False

    def listen(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Prepares a socket to listen, before it is bound. Raises StartupError, as for a network in
        plain."""
        if not needs_keys(endpoint, self._transport):
            return
        public, secret = self._pair()
        self._authenticate(public)
        socket.curve_publickey, socket.curve_secretkey = public, secret
        socket.curve_server = True
        socket.zap_domain = DOMAIN.encode()

    def dial(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Prepares a socket to dial, before it connects. Raises StartupError likewise."""
        if not needs_keys(endpoint, self._transport):
            return
        public, secret = self._pair()
        socket.curve_publickey, socket.curve_secretkey = public, secret
        socket.curve_serverkey = public

    def close(self) -> None:
        self._closing.close()

    def _pair(self) -> tuple[bytes, bytes]:
        folder = Path(self._transport.curve_dir or "")
        files = sorted(folder.glob("*.key_secret"))
        if len(files) != 1:
            raise StartupError(f"{folder} holds {len(files)} files *.key_secret, and needs one")
        return load_secret(files[0])

    def _authenticate(self, allowed: bytes) -> None:
        """Answers, in a thread of its own, which peers may connect to the context's sockets."""
        if self._authenticates:
            return
        from zmq.auth.thread import ThreadAuthenticator

        authenticator = ThreadAuthenticator(self._context)
        authenticator.configure_curve_callback(DOMAIN, _OneKey(allowed))
        authenticator.start()
        self._closing.callback(authenticator.stop)
        self._authenticates = True


class _OneKey:
    """What pyzmq's authenticator asks."""

    def __init__(self, allowed: bytes) -> None:
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._allowed
