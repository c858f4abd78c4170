"""A client that sends one body again and again, in a process of its own: what it takes to send
15 MB must not be counted as a stall of those whose streams are timed.

    python -m loadtest.repeated_body URL <BODY      # until SIGTERM; then the answers, as JSON

It writes a line as soon as it begins to send: what it takes to start is nobody's load.

The key of its tenant is in the variable PENSTOCK_API_KEY.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec

PAUSE = 0.02
"""Seconds between an answer and the next request."""


@asynccontextmanager
async def sending(url: str, key: str, body: bytes) -> AsyncIterator[Counter[str]]:
    """Sends meanwhile. The counter is filled at the end: status -> how many."""
    answers: Counter[str] = Counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __spec__.name, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PENSTOCK_API_KEY": key},
    )
    try:
        stdin = process.stdin
        if stdin is not None:
            stdin.write(body)
            await stdin.drain()
            stdin.close()
        if process.stdout is not None:
            await process.stdout.readline()
        yield answers
        process.terminate()
        said, _ = await process.communicate()
        answers.update(msgspec.json.decode(said, type=dict[str, int]))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _send_on(url: str, key: str, body: bytes) -> Counter[str]:
    answers: Counter[str] = Counter()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with httpx.AsyncClient(timeout=60.0, headers=headers) as client:
        print(flush=True)
        while not ended.is_set():
            try:
                answers[str((await client.post(url, content=body)).status_code)] += 1
            except httpx.HTTPError as error:
                answers[type(error).__name__] += 1
            await asyncio.sleep(PAUSE)
    return answers


if __name__ == "__main__":
    key = os.environ["PENSTOCK_API_KEY"]
    given = asyncio.run(_send_on(sys.argv[1], key, sys.stdin.buffer.read()))
    sys.stdout.buffer.write(msgspec.json.encode(dict(given)))
