"""The adversary's client: so many requests at a time, and what became of each kind.

python -m loadtest.adversary.mallory URL --key KEY --context 8192 --seconds 600 --seed 1

Writes a JSON object: kind -> answer -> how many.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter, defaultdict

import httpx

from loadtest.adversary.edges import Attack, attack

PATIENCE = 60.0
"""Seconds after which a client gives up, whatever it does with its answer."""
SMALL_BUFFER = 4096
"""Bytes that the kernel keeps for a client: one that reads slowly shows soon."""
SLOW_PAUSE = 0.5
PAUSE_AFTER_REFUSAL = 0.2


class Mallory:
    """answers: by kind, how many had which end."""

    def __init__(self, url: str, key: str, context: int, seed: int) -> None:
        self._context = context
        self._draw = random.Random(seed)
        transport = httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)],
        )
        self._client = httpx.AsyncClient(
            base_url=url,
            transport=transport,
            timeout=PATIENCE,
            headers={"authorization": f"Bearer {key}"},
        )
        self.answers: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def run(self, at_a_time: int, seconds: float) -> None:
        """Until so many seconds have passed; what is open then is given up."""
        until = time.monotonic() + seconds
        lanes = [asyncio.create_task(self._lane(until)) for _ in range(at_a_time)]
        try:
            await asyncio.wait(lanes, timeout=seconds)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            await self._client.aclose()

    async def _lane(self, until: float) -> None:
        while time.monotonic() < until:
            one = attack(self._draw, self._context)
            answer = "given up at the end"
            try:
                answer = await self._send(one)
            finally:
                self.answers[one.kind][answer] += 1
            if answer.startswith("status"):
                await asyncio.sleep(PAUSE_AFTER_REFUSAL)

    async def _send(self, one: Attack) -> str:
        leaves = one.hang_up if one.behaviour == "hangs up" else PATIENCE
        try:
            async with asyncio.timeout(leaves):
                return await self._read(one)
        except TimeoutError:
            return "hung up" if one.behaviour == "hangs up" else "gave up waiting"
        except httpx.HTTPError as error:
            return type(error).__name__

    async def _read(self, one: Attack) -> str:
        pause = SLOW_PAUSE if one.behaviour == "reads slowly" else 0.0
        failed = False
        async with self._client.stream("POST", one.path, json=one.body) as response:
            async for piece in response.aiter_raw():
                failed = failed or b'"error":' in piece
                if pause:
                    await asyncio.sleep(pause)
            if response.status_code != 200:
                return f"status {response.status_code}"
            return "error in stream" if failed and one.body["stream"] else "whole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--key", required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--at-a-time", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    mallory = Mallory(flags.url, flags.key, flags.context, flags.seed)
    asyncio.run(mallory.run(flags.at_a_time, flags.seconds))
    json.dump(mallory.answers, sys.stdout)


if __name__ == "__main__":
    main()
