"""Requests to a hub, which may be broken or hostile: bounded in time and memory, whatever comes.

httpx alone counts its limits of time from each byte anew, reads the bodies of redirects and errors
to their ends, unpacks what was packed, and goes on from https to http.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.hub.connection import HubUnreachable

if TYPE_CHECKING:
    import httpx

ASK_SECONDS = 60.0
"""Seconds that a small answer may take until its last byte, redirects included."""
SILENCE = 30.0
"""Seconds without a byte after which a connection is given up."""
PACE_SECONDS = 60.0
PACE_BYTES = 64 << 10
"""Bytes that a file's connection must bring in PACE_SECONDS: a byte now and then is no download."""
MAX_REDIRECTS = 10
MAX_ERROR_BYTES = 64 << 10
"""Most bytes of an error's body, which is shown in part."""
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
_ERROR_HEADERS = ("X-Error-Code", "X-Error-Message", "X-Request-Id", "Retry-After", "Content-Range")


class TooSlow(ConnectionError):
    """The other side keeps the connection open, and brings next to nothing."""


class HubAnswer:
    """A hub's answer, whose body hasn't been read."""

    def __init__(self, response: httpx.Response, watch: _Watch) -> None:
        self.response = response
        self._watch = watch

    @property
    def status(self) -> int:
        return int(self.response.status_code)

    def header(self, name: str) -> str:
        """Empty if there is none."""
        return str(self.response.headers.get(name, ""))

    def parts(self) -> Iterator[bytes]:
        """The body as it comes. Raises HubUnreachable if it is packed."""
        packed = self.header("Content-Encoding").strip().lower()
        if packed not in ("", "identity"):
            raise HubUnreachable(
                f"{self._at} sends {packed[:40]!r}, where contents as they are were asked for"
            )
        return self._counted()

    def read(self, most: int) -> bytes:
        """The body, of at most so many bytes. Raises HubUnreachable if there are more."""
        body = bytearray()
        for part in self.parts():
            body += part
            if len(body) > most:
                raise HubUnreachable(f"{self._at} answers with more than {most} bytes")
        return bytes(body)

    def check_status(self) -> None:
        """Raises huggingface_hub's exception for a status that says that there is none."""
        if self.status < 400:
            return
        import httpx
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        body = bytearray()
        for part in self._counted():
            body += part[: MAX_ERROR_BYTES - len(body)]
            if len(body) == MAX_ERROR_BYTES:
                break
        headers = {name: self.header(name) for name in _ERROR_HEADERS if self.header(name)}
        hf_raise_for_status(
            httpx.Response(
                self.status, headers=headers, content=bytes(body), request=self.response.request
            )
        )

    @property
    def _at(self) -> str:
        url = self.response.request.url
        return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"

    def _counted(self) -> Iterator[bytes]:
        for part in self.response.iter_raw():
            self._watch.came += len(part)
            yield part


@contextmanager
def asked(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    file: bool = False,
    enough: Callable[[HubAnswer], bool] = lambda _: False,
) -> Iterator[HubAnswer]:
    """The answer to a request with the user's token, after redirects.

    The token goes to no other host than the one asked first.  file: the answer may take any time,
    at a pace; else it must be complete soon.  enough: whether an answer that redirects will do.
    Raises TooSlow, HubUnreachable (for what no hub does), huggingface_hub's OfflineModeIsEnabled,
    and httpx's exceptions.
    """
    import httpx
    from huggingface_hub import get_session
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    sent = {
        **build_hf_headers(library_name="penstock"),
        **(headers or {}),
        "Accept-Encoding": "identity",
        # The watch knows a connection's socket from its beginning.
        "Connection": "close",
    }
    session = get_session()
    request = session.build_request(method, url, headers=sent, params=params, timeout=SILENCE)
    watch = _Watch(PACE_SECONDS, PACE_BYTES) if file else _Watch(ASK_SECONDS, math.inf)
    request.extensions["trace"] = watch.trace
    with watch:
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = session.send(request, stream=True, follow_redirects=False)
                with closing(response):
                    answer = HubAnswer(response, watch)
                    following = response.next_request
                    if following is None or enough(answer):
                        yield answer
                        return
                _refuse_downgrade(request, following)
                request = following
        except (httpx.TransportError, httpx.StreamError) as error:
            watch.check()
            raise error
        finally:
            watch.end()
        raise HubUnreachable(f"{url} leads on more than {MAX_REDIRECTS} times")


def _refuse_downgrade(request: httpx.Request, following: httpx.Request) -> None:
    """Over http anybody on the way could answer in the hub's name."""
    if request.url.scheme == "https" and following.url.scheme != "https":
        raise HubUnreachable(f"https://{request.url.host} leads on to {following.url.scheme}")


class _Watch:
    """Ends a connection from another thread than the one that waits for it.

    seconds: in which it must bring at least `least` bytes, again and again.
    came: bytes that it has brought.
    """

    def __init__(self, seconds: float, least: float) -> None:
        self.came = 0
        self._seconds, self._least = seconds, least
        self._slow = False
        self._stream: Any = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hub pace", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.check()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raises TooSlow if it was: what came last looks like an end."""
        if self._slow:
            least = "" if math.isinf(self._least) else f"{self._least} bytes of "
            raise TooSlow(f"{least}its answer did not come in {self._seconds:g} s") from None

    def trace(self, _: str, about: Mapping[str, Any]) -> None:
        """Hears from httpcore of each connection, plain or with TLS, as it is made."""
        stream = about.get("return_value")
        if hasattr(stream, "get_extra_info"):
            self._stream = stream
            if self._slow:
                self._cut()

    def _look(self) -> None:
        seen = 0
        while not self._ended.wait(self._seconds):
            if self.came - seen < self._least:
                self._slow = True
                self._cut()
                return
            seen = self.came

    def _cut(self) -> None:
        connection = self._stream and self._stream.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):
                # Not an SSLSocket's own: after that, it would hand out bytes as they were sent.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
