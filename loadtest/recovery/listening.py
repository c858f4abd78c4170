"""The front end's process, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from loadtest.recovery.samples import Outcome, Sample

PATIENCE = 600.0
LOOK = 0.02


class Listening:
    """outcome: the last word of the process."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self.samples: list[Sample] = []
        self.outcome: Outcome | None = None

    async def listen(self, said: asyncio.StreamReader) -> None:
        """Until it has no more to say."""
        decoder = msgspec.json.Decoder(Sample | Outcome)
        async for line in said:
            message = decoder.decode(line)
            if isinstance(message, Sample):
                self.samples.append(message)
            else:
                self.outcome = message

    async def until(self, condition: Callable[[Sample], bool], seconds: float = PATIENCE) -> bool:
        """Waits for a sample, not heard yet, of which it holds. Whether one came in time, and
        before the end."""
        seen = len(self.samples)
        deadline = time.monotonic() + seconds
        while self.outcome is None and time.monotonic() < deadline:
            if any(condition(sample) for sample in self.samples[seen:]):
                return True
            seen = len(self.samples)
            await asyncio.sleep(LOOK)
        return False

    async def result(self) -> dict[str, Any]:
        """The outcome. Requests that haven't ended after PATIENCE are taken for failed."""
        await self.until(lambda each: False)
        if self.outcome is None:
            left = self.samples[-1].open
            self.outcome = Outcome(wrong=left, failed=[f"{left} never ended"])
        return msgspec.structs.asdict(self.outcome)


@contextlib.asynccontextmanager
async def listening(
    endpoint: str, requests: int, prompt_tokens: int, tokens: int
) -> AsyncIterator[Listening]:
    """A front end with so many requests."""
    command = [sys.executable, "-m", "loadtest.recovery.front"]
    about = json.dumps([endpoint, requests, prompt_tokens, tokens])
    process = await asyncio.create_subprocess_exec(*command, about, stdout=PIPE)
    front = Listening(process)
    if process.stdout is None:
        raise ValueError("the front end's words go elsewhere")
    hearing = asyncio.create_task(front.listen(process.stdout))
    try:
        yield front
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await hearing
