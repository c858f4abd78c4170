"""The server under load: its address, and the few facts that a report names."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.net.trust import why_untrusted


class TargetError(RuntimeError):
    """The server can't be used: a bad URL, no answer, no model."""


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    tls: bool
    prefix: str
    api_key: str | None = None
    context: ssl.SSLContext | None = field(default=None, compare=False)  # None: without TLS

    @classmethod
    def from_url(
        cls, url: str, api_key: str | None = None, context: ssl.SSLContext | None = None
    ) -> Target:
        """`http://host:port[/prefix]`; a trailing /v1 is taken off.  context: for https; None:
        trusts what the system trusts.  Raises TargetError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise TargetError(f"{url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(f"{url!r} is no URL like http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if tls else 80),
            tls=tls,
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            api_key=api_key,
            context=(context or ssl.create_default_context()) if tls else None,
        )

    def head(self, path: str, length: int) -> bytes:
        """The request's head for a JSON body of `length` bytes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.prefix}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Connection: close",
            f"Content-Length: {length}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")

    def get_json(self, path: str, timeout: float = 10.0) -> object:
        """Raises OSError, http.client.HTTPException, ValueError."""
        connection = self._connection(timeout)
        try:
            headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
            connection.request("GET", self.prefix + path, headers=headers)
            response = connection.getresponse()
            body = response.read(1 << 20)
            if response.status != 200:
                raise ValueError(f"GET {path}: {response.status} {body[:200]!r}")
            return json.loads(body)
        finally:
            connection.close()

    def first_model(self) -> str:
        """The first id of /v1/models. Raises TargetError."""
        try:
            answer = self.get_json("/v1/models")
            return str(answer["data"][0]["id"])  # type: ignore[index]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            url = f"http{'s' if self.tls else ''}://{self.host}:{self.port}{self.prefix}"
            words = why_untrusted(error, url) or f"{url}/v1/models gave no model: {error!r}"
            raise TargetError(words) from error

    def version(self) -> str | None:
        """What /version says, if the server has that."""
        try:
            answer = self.get_json("/version")
        except (OSError, http.client.HTTPException, ValueError):
            return None
        return str(answer.get("version")) if isinstance(answer, dict) else None

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.context is not None:
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=timeout, context=self.context
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)
