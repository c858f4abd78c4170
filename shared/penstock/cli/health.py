"""`penstock health`: for a container's health check, which has no curl."""

from __future__ import annotations

import argparse
import http.client
import ssl
from urllib.parse import urlsplit

from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest
from penstock.net.trust import add_trust_arguments, trusted_context, why_untrusted

TIMEOUT = 2.0
"""Seconds. A probe that waits longer says nothing that silence doesn't."""
MAX_ANSWER = 65_536
NOT_HEALTHY = 1


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Requests a health path once and prints the answer. Exit codes: 0 for a 200, 1 for"
        " another status or no answer, 2 wrong usage."
    )
    parser.epilog = examples(
        "penstock health http://127.0.0.1:9100/health/ready",
        "penstock health --cacert cert.pem https://127.0.0.1:8000/health/ready",
    )
    parser.add_argument("url", metavar="URL")
    add_trust_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns one of the exit codes above. Raises InvalidRequest for what is no
    URL."""
    parts = urlsplit(arguments.url)
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"URL {arguments.url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"URL {arguments.url!r} is not http[s]://HOST:PORT/PATH")
    tls = trusted_context(arguments) if parts.scheme == "https" else None
    connection = _connection(parts.hostname, port, tls)
    try:
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        words = answer.read(MAX_ANSWER).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        words = why_untrusted(error, arguments.url) or f"{_why(error)} at {parts.netloc}"
        print(f"not healthy: {words}")
        return NOT_HEALTHY
    finally:
        connection.close()
    print(words or answer.status)
    return 0 if answer.status == 200 else NOT_HEALTHY


def _connection(
    host: str, port: int | None, tls: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=tls)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, http.client.HTTPException):
        return "no HTTP answer"
    return f"nobody answers ({getattr(error, 'strerror', None) or error})"
