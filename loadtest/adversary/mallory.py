"""The adversary's client: so many requests at a time, and what became of each kind.

Its one argument is a JSON object, Mallory's fields. Writes another: kind -> answer -> how many.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import httpx

from loadtest.adversary.edges import Attack, attack
from testing.streams.timed import beside

PATIENCE = 60.0
"""Seconds after which a client gives up, whatever it does with its answer."""
SMALL_BUFFER = 4096
"""Bytes that the kernel keeps for a client: one that reads slowly shows soon."""
SLOW_PAUSE = 0.5
PAUSE_AFTER_REFUSAL = 0.2


@dataclass
class Mallory:
    url: str
    key: str
    context: int  # tokens that the model may have, in and out
    at_a_time: int  # requests
    seconds: float
    seed: int
    answers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """How many answers had which end, by kind."""

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        transport = httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)],
        )
        self._client = httpx.AsyncClient(
            base_url=self.url,
            transport=transport,
            timeout=PATIENCE,
            headers={"authorization": f"Bearer {self.key}"},
        )

    async def run(self) -> None:
        """What is open when the time is over is given up."""
        async with self._client, beside(self._ask_on() for _ in range(self.at_a_time)):
            await asyncio.sleep(self.seconds)

    async def _ask_on(self) -> None:
        while True:
            one = attack(self._draw, self.context)
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


if __name__ == "__main__":
    mallory = Mallory(**json.loads(sys.argv[1]))
    asyncio.run(mallory.run())
    json.dump(mallory.answers, sys.stdout)
