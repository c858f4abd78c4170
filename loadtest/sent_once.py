"""A client in a process of its own that sends bodies from files, one after the other: what it takes
to send 15 MB must not be counted as a stall of those whose streams are timed.

    python -m loadtest.sent_once

For each line with a JSON object (url, key, file, patience in seconds) it writes one: status of the
answer (0: none in time), seconds until its last byte, bytes, and how it begins if it isn't 200.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PAUSE = 0.02
"""Seconds between an answer and the next request of what is sent again and again."""
BEGINNING = 200
"""Characters of an answer that are told."""


def sent(asked: dict[str, Any]) -> dict[str, Any]:
    """What came back."""
    place = urlsplit(asked["url"])
    headers = {
        "authorization": f"Bearer {asked['key']}",
        "content-type": "application/json",
    }
    body = Path(asked["file"]).read_bytes()
    begun = time.monotonic()
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=1.0)
    until = begun + asked["patience"]
    status, received, first = 0, 0, b""
    try:
        connection.connect()
        connection.sock.settimeout(asked["patience"])
        try:
            connection.request("POST", place.path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # It was refused before it had come.
        connection.sock.settimeout(max(0.1, until - time.monotonic()))
        response = connection.getresponse()
        part = first = response.read1(65_536)
        received = len(first)
        while part and time.monotonic() < until:
            part = response.read1(1 << 20)
            received += len(part)
        status = 0 if part else response.status
    except (OSError, http.client.HTTPException) as error:
        first = type(error).__name__.encode()
    finally:
        connection.close()
    said = "" if status == 200 else first[:BEGINNING].decode(errors="replace")
    return {
        "status": status,
        "seconds": time.monotonic() - begun,
        "received": received,
        "said": said,
    }


class Sender:
    """The client, as who measures sees it. url: of the server.  patience: seconds until it gives
    up."""

    def __init__(
        self, process: asyncio.subprocess.Process, url: str, key: str, patience: float
    ) -> None:
        self._process, self._url, self._key, self._patience = process, url, key, patience

    async def send(self, path: str, file: Path) -> dict[str, Any]:
        """Sends a body, and says what came of it."""
        asked = {
            "url": self._url + path,
            "key": self._key,
            "file": str(file),
            "patience": self._patience,
        }
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the client has no pipes")
        stdin.write(json.dumps(asked).encode() + b"\n")
        await stdin.drain()
        answer: dict[str, Any] = json.loads(await stdout.readline())
        return answer


@asynccontextmanager
async def sender(url: str, key: str, patience: float) -> AsyncIterator[Sender]:
    """A client, which ends with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __spec__.name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Sender(process, url, key, patience)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def repeated(client: Sender, path: str, body: bytes) -> AsyncIterator[Counter[str]]:
    """Sends a body again and again meanwhile. The counter: status -> how many answers so far."""
    answers: Counter[str] = Counter()
    ended = asyncio.Event()

    async def send_on(file: Path) -> None:
        while not ended.is_set():
            answer = await client.send(path, file)
            answers[str(answer["status"] or answer["said"])] += 1
            await asyncio.sleep(PAUSE)

    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        sending = asyncio.create_task(send_on(Path(file.name)))
        yield answers
        ended.set()
        await sending


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(sent(json.loads(line))), flush=True)
