"""`penstock health`: for a container's health check, which has no curl."""

from __future__ import annotations

import argparse
import http.client
from urllib.parse import urlsplit

from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest

TIMEOUT = 2.0
"""Seconds. A probe that waits longer says nothing that silence doesn't."""
MAX_ANSWER = 65_536
NOT_HEALTHY = 1


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Asks a health path once and prints what it says. Exit codes: 0 it answered 200, 1 it "
        "didn't or nobody is there, 2 wrong usage."
    )
    parser.epilog = examples("penstock health http://127.0.0.1:9100/health/ready")
    parser.add_argument("url", metavar="URL")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """See the exit codes above. Raises InvalidRequest for what is no URL."""
    parts = urlsplit(arguments.url)
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"URL {arguments.url!r}: {error}") from None
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidRequest(f"URL {arguments.url!r} is not http://HOST:PORT/PATH")
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=TIMEOUT)
    try:
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        words = answer.read(MAX_ANSWER).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print(f"not healthy: {_why(error)} at {parts.netloc}")
        return NOT_HEALTHY
    finally:
        connection.close()
    print(words or answer.status)
    return 0 if answer.status == 200 else NOT_HEALTHY


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, http.client.HTTPException):
        return "an answer that is no HTTP"
    return f"nobody answers ({getattr(error, 'strerror', None) or error})"
