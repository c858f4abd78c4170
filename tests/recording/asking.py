"""Sends the cases to a server, many at once, and doesn't wait for one that stands still."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.recording.answers import answer
from tests.recording.case import Case

STALL = 120.0
"""Seconds in which not one request ends: the server hangs. On two cores all of them take some 100,
none of them 20."""
LOG = 4000
"""Characters of the server's log that are shown then."""


class Asked(Protocol):
    """A server."""

    url: str

    @property
    def stderr(self) -> str:
        """Its log so far."""


class Stalled(Exception):
    """Requests that get no answer, by name."""


def ask(server: Asked, cases: list[Case], concurrency: int, stall: float = STALL) -> dict[str, Any]:
    """Each case's answer, by its name.

    Raises Stalled where none has come for `stall` seconds; requests may be open still then, so the
    server is to be closed.  What a request raises is raised.
    """
    pool = ThreadPoolExecutor(concurrency)
    try:
        names = {pool.submit(send, server, case, stall): case.name for case in cases}
        left: set[Future[dict[str, Any]]] = set(names)
        while left:
            done, left = wait(left, stall, FIRST_COMPLETED)
            for each in done:
                _raise_its_own(each, names[each])
            if not done:
                asked = sorted(names[each] for each in left if each.running())
                raise Stalled(
                    f"no answer for {stall:g} s; {len(left)} are missing, asked for: "
                    f"{', '.join(asked)}\n--- the server's log\n{server.stderr[-LOG:]}"
                )
        return {names[each]: each.result() for each in names}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _raise_its_own(done: Future[dict[str, Any]], name: str) -> None:
    error = done.exception()
    if error is not None:
        error.add_note(f"the case: {name}")
        raise error


def send(server: Asked, case: Case, timeout: float) -> dict[str, Any]:
    """One request and its answer. timeout: seconds after which nobody waits for it any more."""
    url = urlsplit(server.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=2 * timeout)
    try:
        if case.body is None:
            connection.request("GET", case.path)
        else:
            body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
            connection.request("POST", case.path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        headers = [(name.lower(), value) for name, value in reply.getheaders()]
        return answer(reply.status, headers, reply.read())
    finally:
        connection.close()
