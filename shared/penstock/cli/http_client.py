"""A small HTTP client for the commands that ask a running system: JSON, and streams of events."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidRequest, PenstockError
from penstock.net.trust import add_trust_arguments, trusted_context, why_untrusted

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_ANSWER = 64 << 20
MAX_LINE = 16 << 20
PASSING = (502, 503, 504)
"""Statuses that a proxy or a gateway answers with while its upstreams are unavailable."""
LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed")
"""Types of events after which a stream of messages or of a response has no others."""
BETWEEN_ATTEMPTS = 0.05
"""Seconds between two attempts to go on with a stream."""
SILENCE = 30.0
"""Seconds without a byte after which a resumed stream's connection counts as broken, at the least:
twice as long as a server that queues or computes says nothing (--keepalive-interval)."""
COMMENT: Any = object()
"""In the place of an event: a comment, by which a server shows that it is there."""


class Unreachable(PenstockError):
    """Raised if no server answers at the address, or one that doesn't speak HTTP."""


class Refused(PenstockError):
    """The server answered with an error. status: HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the server answered {status}: {message}")
        self.status = status


def add_server_arguments(parser: argparse._ActionsContainer, *, default: str | None) -> None:
    """--url, --api-key-env, and whom to trust."""
    words = f"A running system. Default: {default}." if default else "Use this running system."
    parser.add_argument("--url", default=default, metavar="URL", help=words)
    parser.add_argument(
        "--api-key-env",
        default="PENSTOCK_API_KEY",
        metavar="NAME",
        help="Environment variable that holds the API key. Default: %(default)s.",
    )
    add_trust_arguments(parser)


def client(arguments: argparse.Namespace, timeout: float = 600.0) -> HttpClient:
    """The HTTP client that the arguments above ask for. Raises InvalidRequest for what is no URL,
    or no certificate."""
    key = os.environ.get(arguments.api_key_env) or None
    return HttpClient(arguments.url or DEFAULT_URL, key, timeout, trusted_context(arguments))


class HttpClient:
    """url: `http://host:port[/prefix]`; a trailing /v1 is taken off.  timeout: seconds without a
    byte.  tls: for https; None: trusts what the system trusts."""

    def __init__(
        self, url: str, api_key: str | None, timeout: float, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"--url {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"--url {url!r} is no URL like {DEFAULT_URL}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._host, self._port = parts.hostname, port
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._timeout = timeout

    def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded JSON (None if it is none). Raises Unreachable."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and decoded JSON, as `get` has them. Raises Unreachable."""
        return self._ask("POST", path, body)

    def post_once(self, path: str, body: dict[str, Any]) -> tuple[int, Any, float | None]:
        """Status and decoded JSON, as of `post`, and the seconds of Retry-After; None: it says
        nothing of another time."""
        with _Exchange(self, "POST", path, body) as response:
            later = response.getheader("retry-after") or ""
            return response.status, _whole(response), float(later) if later.isdigit() else None

    def post_form(self, path: str, form: bytes, content_type: str) -> bytes:
        """POSTs a form. Returns the answer's bytes. Raises Unreachable, and Refused for a status
        other than 200."""
        with _Exchange(self, "POST", path, form, content_type) as response:
            answer = response.read(MAX_ANSWER)
            if response.status != 200:
                raise Refused(response.status, reason_of(_json(answer)))
            return answer

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        with _Exchange(self, method, path, body) as response:
            return response.status, _whole(response)

    def first_model(self) -> str:
        """The first model's name. Raises Unreachable and Refused."""
        status, answer = self.get("/v1/models")
        if status != 200:
            raise Refused(status, reason_of(answer))
        try:
            return str(answer["data"][0]["id"])
        except (LookupError, TypeError):
            raise Unreachable(f"{self.url}/v1/models names no model") from None

    def events(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """POSTs, and yields each event's decoded JSON until [DONE].

        Leaving the iteration closes the connection, which aborts the request.  Raises Unreachable,
        and Refused for a status other than 200 or an error event.
        """
        for _, event in self._events(path, body, None):
            if event is not None and event is not COMMENT:
                yield event

    def resumed_events(self, path: str, body: dict[str, Any], patience: float) -> Iterator[Any]:
        """Yields the events of a Penstock server, whose stream goes on where it broke off, at
        whichever gateway answers: no event is lost, and none comes twice. patience: seconds from
        a break on until one sends an event or a comment. The client's timeout is longer than the
        server is silent between comments: a connection without a byte for so long is broken."""
        options = {**(body.get("stream_options") or {}), "resumable": True}
        body = {**body, "stream": True, "stream_options": options}
        last: str | None = None
        since: float | None = None  # When it broke, until a server shows that it is there.
        while True:
            waiting: list[Any] = []  # Events come once more until one of them has an id.
            try:
                for id, event in self._events(path, body, last):
                    if event is COMMENT:
                        since = None
                        continue
                    if event is not None:
                        waiting.append(event)
                    if event is None or _is_last(event):
                        yield from waiting
                        return
                    if id is not None:
                        yield from waiting
                        last, waiting, since = id, [], None
                raise Unreachable(f"the stream of {self.url} broke off")
            except PenstockError as error:
                passing = isinstance(error, Unreachable) or (
                    isinstance(error, Refused) and error.status in PASSING
                )
                now = time.monotonic()
                since = now if since is None else since
                if not passing or now - since >= patience:
                    raise
            time.sleep(BETWEEN_ATTEMPTS)

    def _events(
        self, path: str, body: dict[str, Any], last: str | None
    ) -> Iterator[tuple[str | None, Any]]:
        """Id and JSON of each event, None for [DONE]; COMMENT. last: id of the event to go on
        from."""
        more = {} if last is None else {"Last-Event-ID": last}
        with _Exchange(self, "POST", path, body, more=more) as response:
            if response.status != 200:
                answer = _json(response.read(MAX_ANSWER))
                raise Refused(response.status, reason_of(answer))
            id: str | None = None
            while line := response.readline(MAX_LINE):
                if line.startswith(b"id:"):
                    id = line[3:].strip().decode("latin-1")
                if line.startswith(b":"):
                    yield None, COMMENT
                if not line.startswith(b"data:"):
                    continue
                if not line.endswith(b"\n"):
                    return  # Where nothing says how long the answer is, it may be cut anywhere.
                data = line[5:].strip()
                if data == b"[DONE]":
                    yield None, None
                    return
                event = _json(data)
                if isinstance(event, dict) and event.get("error"):
                    raise Refused(_code(event), reason_of(event))
                yield id, event
                id = None

    def connect(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def target(self, path: str) -> str:
        return self._prefix + path

    def headers(self, content_type: str = "application/json") -> dict[str, str]:
        headers = {"Content-Type": content_type}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers


class _Exchange:
    """One request over a connection of its own. Network errors are raised as Unreachable."""

    def __init__(
        self,
        server: HttpClient,
        method: str,
        path: str,
        body: dict[str, Any] | bytes | None,
        content_type: str = "application/json",
        more: dict[str, str] | None = None,
    ) -> None:
        """more: headers."""
        self._more = more or {}
        self._server, self._method, self._path = server, method, path
        self._body = json.dumps(body).encode() if isinstance(body, dict) else body
        self._content_type = content_type
        self._connection = server.connect()

    def __enter__(self) -> http.client.HTTPResponse:
        try:
            self._connection.request(
                self._method,
                self._server.target(self._path),
                self._body,
                {**self._server.headers(self._content_type), **self._more},
            )
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._unreachable(error) from None
        except BaseException:
            self._connection.close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._connection.close()
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise self._unreachable(error) from None

    def _unreachable(self, error: BaseException) -> Unreachable:
        if words := why_untrusted(error, self._server.url):
            return Unreachable(words)
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Unreachable(f"nobody answers at {self._server.url}: {reason}")


def _whole(response: http.client.HTTPResponse) -> Any:
    answer = response.read(MAX_ANSWER)
    if response.length and len(answer) < MAX_ANSWER:
        raise http.client.IncompleteRead(answer, response.length)
    return _json(answer)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def reason_of(answer: Any) -> str:
    """What an error's body says."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else "no reason was given"


def _is_last(event: Any) -> bool:
    return isinstance(event, dict) and event.get("type") in LAST_EVENTS


def _code(event: dict[str, Any]) -> int:
    error = event["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else 500


def resumed_events(
    url: str,
    body: dict[str, Any],
    *,
    path: str = "/v1/chat/completions",
    api_key: str | None = None,
    patience: float = 120.0,
) -> Iterator[Any]:
    """Streams an answer of a Penstock server, and goes on with it when the connection or a gateway
    breaks: yields each event's decoded JSON, none twice and none left out, as they would have come.

    url: `http://host:port`.  body: of the request, as for `path`; `stream` is added.  patience:
    seconds from a break on without an event or a comment, after which it counts as the end: by
    default twice as long as a gateway waits for an engine core before it breaks off.

    A connection without a byte for half as long, and for 30 s at least, counts as broken: a machine
    that vanishes doesn't close it, and one that is there sends comments.  So the server's
    `--keepalive-interval` (15 s by default) must be shorter than that, and not 0: from a server
    that says less, a request that queues for longer is taken away again and again.

    Raises Unreachable, and Refused for an error that the server answers with.
    """
    silence = max(patience / 2, SILENCE)
    yield from HttpClient(url, api_key, silence).resumed_events(path, body, patience)
