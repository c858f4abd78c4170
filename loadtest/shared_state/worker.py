"""A process that asks as a gateway does, by the gateway's own classes.

    python worker.py '{"work": "limits", "url": "redis://…", …}'

It is started by its file, with the packages of the tree that is measured on the path, which may be
of another commit: so it imports nothing else of this folder.  It says `ready`, begins at a line on
stdin, and answers with a line of JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from penstock.request.api_keys import ApiKey
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.keys.rate_limits import RateLimits
from penstock_gateway.keys.ring import Caller

MOST_OPEN = 64
"""Requests of this process at a time; others that are due wait, and their wait counts."""
PROMPT, OUTPUT = 100, 200


class Run:
    """Requests at fixed times, whether or not others have ended."""

    def __init__(self, rate: float, seconds: float) -> None:
        self._rate, self._seconds = rate, seconds
        self.latencies: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.refused: list[float] = []
        """When, in seconds since the beginning, the server had no answer."""

    async def drive(self, request: Callable[[int], Awaitable[str]]) -> dict[str, Any]:
        """request: takes a number, returns how it ended."""
        begun, processor = time.monotonic(), time.process_time()
        open_now = asyncio.Semaphore(MOST_OPEN)
        tasks: set[asyncio.Task[None]] = set()

        async def one(number: int, due: float) -> None:
            try:
                outcome = await request(number)
            finally:
                open_now.release()
            self.outcomes[outcome] += 1
            now = time.monotonic()
            self.latencies.append(1000 * (now - due))
            if outcome == "503":
                self.refused.append(now - begun)

        number = 0
        while (passed := time.monotonic() - begun) < self._seconds:
            while number < passed * self._rate:
                await open_now.acquire()
                if time.monotonic() - begun > self._seconds:
                    break
                task = asyncio.create_task(one(number, begun + number / self._rate))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.sleep(number / self._rate - (time.monotonic() - begun))
        if tasks:
            await asyncio.gather(*tasks)
        return {
            "processor": time.process_time() - processor,
            "seconds": time.monotonic() - begun,
            "latencies": sorted(self.latencies)[:: max(1, len(self.latencies) // 2000)],
            "outcomes": dict(self.outcomes),
            "refused_from": min(self.refused, default=None),
            "refused_to": max(self.refused, default=None),
        }


def known(make: Any, **wanted: object) -> dict[str, Any]:
    """Returns those of the arguments that the tree's version takes."""
    return {k: v for k, v in wanted.items() if k in inspect.signature(make).parameters}


async def limits(task: dict[str, Any]) -> dict[str, Any]:
    """Each request is counted, as are the tokens of its prompt and of its output. task: url, keys,
    requests (a minute, of a key), tokens, fallback."""
    made = RateLimits(task["url"], **known(RateLimits, fallback=task.get("fallback", "refuse")))
    keys = [
        ApiKey(
            name=f"key {n}",
            sha256=hashlib.sha256(b"%d" % n).hexdigest(),
            requests_per_minute=task["requests"],
            tokens_per_minute=task["tokens"],
        )
        for n in range(task["keys"])
    ]
    accepted: Counter[str] = Counter()

    async def request(number: int) -> str:
        caller = Caller(keys[number % len(keys)])
        try:
            await made.arrived(caller, counted=True)
            await made.prompt(caller, PROMPT)
        except HTTPError as error:
            return str(error.status)
        made.output(caller, OUTPUT)
        accepted[keys[number % len(keys)].name] += 1
        return "200"

    await request(0)
    await ready()
    found = await Run(task["rate"], task["seconds"]).drive(request)
    await asyncio.sleep(0.2)  # Outputs are counted in the background.
    return {**found, "accepted": dict(accepted)}


async def responses(task: dict[str, Any]) -> dict[str, Any]:
    """Each request stores a response and reads another one. task: url, tenants, process, pool."""
    from penstock_gateway.storage.database import Database
    from penstock_gateway.storage.response_records import ResponseRecords

    database = Database(task["url"], **known(Database, connections=task["pool"]))
    kept = ResponseRecords(database, most=10_000, most_bytes=1 << 30, seconds=86_400)
    stored: list[tuple[str, str]] = []

    async def request(number: int) -> str:
        owner = f"t{number % task['tenants']}"
        id = f"resp_{task['process']}_{number}"
        try:
            await kept.save(owner, id, None, "[" + "x" * 500 + "]", "y" * 1500)
            stored.append((owner, id))
            await kept.find(*stored[number % len(stored)])
        except HTTPError as error:
            return str(error.status)
        return "200"

    await ready()
    found = await Run(task["rate"], task["seconds"]).drive(request)
    database.close()
    return {**found, "stored": [id for _, id in stored] if task.get("list") else len(stored)}


async def tables(task: dict[str, Any]) -> dict[str, Any]:
    """Makes them in an empty database. task: url."""
    from penstock_gateway.storage.database import Database

    await ready()
    Database(task["url"]).close()
    return {}


async def ready() -> None:
    """Says so, and waits until all are to begin."""
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def main() -> None:
    task = json.loads(sys.argv[1])
    work = {"limits": limits, "responses": responses, "tables": tables}[task["work"]]
    print(json.dumps(uvloop.run(work(task))), flush=True)


if __name__ == "__main__":
    main()
