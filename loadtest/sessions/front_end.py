"""Front ends of engine cores, many in one process, each with sessions of its own.

    python -m loadtest.sessions.front_end MODEL_DIR CLIENTS MOST_ENGINES ENDPOINT...

Each line that is read is the name of one of `Commands`, and perhaps a number; a line of JSON
answers it.  What they have in common here, as a process has it once, is the tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import uvloop
import zmq

from penstock import SamplingParams
from penstock.client import EngineClient, fleet
from penstock.client.session import EngineSession
from penstock.net.listener import raise_file_limit
from penstock.prepare.folder import TOKENIZER
from penstock.text.read_ahead import read_ahead
from penstock.transport import session_client

LOOK = 0.01
"""Seconds between looks who is ready."""
PROMPT = list(range(100, 108))


class Traffic:
    """Messages and bytes of all sessions of this process, in both directions."""

    def __init__(self) -> None:
        self.sent = self.sent_bytes = self.received = self.received_bytes = 0

    def count(self) -> None:
        """Counts from now on, also of sessions that begin later."""
        module: Any = session_client
        plain_send, plain_received = module.send, module.SessionClient._received

        def send(socket: zmq.Socket[bytes], parts: Sequence[bytes | memoryview]) -> None:
            plain_send(socket, parts)
            self.sent += 1
            self.sent_bytes += sum(map(len, parts))

        def received(self_: Any, socket: zmq.Socket[bytes]) -> list[bytes]:
            parts: list[bytes] = plain_received(self_, socket)
            self.received += 1
            self.received_bytes += sum(map(len, parts))
            return parts

        module.send = send
        module.SessionClient._received = received

    def taken(self) -> dict[str, int]:
        """Counts since the last call."""
        found = dict(vars(self))
        vars(self).update(dict.fromkeys(found, 0))
        return found


class Commands:
    """What can be asked for."""

    def __init__(self, endpoints: list[str], clients: int) -> None:
        self._traffic = Traffic()
        self._traffic.count()
        self._clients = [
            EngineClient(",".join(endpoints), name=f"front end {number}")
            for number in range(clients)
        ]
        self._boots: dict[EngineSession, str] = {}

    @property
    def _sessions(self) -> list[EngineSession]:
        return [session for client in self._clients for session in client._fleet]

    async def connect(self) -> dict[str, Any]:
        """Dials, until all engine cores are ready for all front ends."""
        begun = time.monotonic()
        for client in self._clients:
            await client.start()
        return {"begun": begun, **await self.back()}

    async def watch(self) -> dict[str, Any]:
        """Notes which engine cores there are, before `back`."""
        self._boots = {s: s.welcome.boot for s in self._sessions if s.welcome is not None}
        self._traffic.taken()
        return {}

    async def back(self) -> dict[str, Any]:
        """Waits until all are ready that `watch` has not seen. Moments of the monotonic clock at
        which they were."""
        waiting, moments = self._sessions, list[float]()
        while waiting:
            await asyncio.sleep(LOOK)
            left = [each for each in waiting if not self._is_back(each)]
            moments += [time.monotonic()] * (len(waiting) - len(left))
            waiting = left
        return {"moments": moments, "traffic": self._traffic.taken()}

    def _is_back(self, session: EngineSession) -> bool:
        welcome = session.welcome
        return session.ready and welcome is not None and welcome.boot != self._boots.get(session)

    async def rest(self, seconds: str) -> dict[str, Any]:
        """Does nothing for so long."""
        self._traffic.taken()
        begun, computed = time.monotonic(), time.process_time()
        await asyncio.sleep(float(seconds))
        return {
            "seconds": time.monotonic() - begun,
            "processor": time.process_time() - computed,
            "traffic": self._traffic.taken(),
            "pss": psutil.Process().memory_full_info().pss,
        }

    async def requests(self, count: str) -> dict[str, Any]:
        """Requests one after the other: milliseconds until the first token of each."""
        latencies = []
        for number in range(int(count)):
            begun = time.perf_counter()
            prompt = [number % 20_000 + 300, *PROMPT]
            params = SamplingParams(max_tokens=1, seed=number)
            generation = await self._clients[0].submit(prompt, params, name=f"r{number}")
            async for _ in generation:
                latencies.append(1000 * (time.perf_counter() - begun))
        return {"latencies": latencies}


async def serve(commands: Commands) -> None:
    """Answers one line after the other, until there is none."""
    loop = asyncio.get_running_loop()
    while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        command: Callable[..., Awaitable[dict[str, Any]]] = getattr(commands, words[0])
        print(json.dumps(await command(*words[1:])), flush=True)
    os._exit(0)


def main(model_dir: str, clients: str, most_engines: str, *endpoints: str) -> None:
    raise_file_limit()
    fleet.MAX_ENGINES = max(fleet.MAX_ENGINES, int(most_engines))
    read_ahead((Path(model_dir) / TOKENIZER).read_bytes())
    uvloop.run(serve(Commands(list(endpoints), int(clients))))


if __name__ == "__main__":
    main(*sys.argv[1:])
