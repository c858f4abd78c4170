"""The front end's process, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from loadtest.recovery.samples import Outcome, Sample

PATIENCE = 600.0
LOOK = 0.02


class Listening:
    """The front end's process, and what it has said so far. outcome: its last word."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.samples: list[Sample] = []
        self.outcome: Outcome | None = None
        self._decoder = msgspec.json.Decoder(Sample | Outcome)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listen(self) -> None:
        """Until it has no more to say."""
        if self._process.stdout is None:
            raise ValueError("the front end's words go elsewhere")
        async for line in self._process.stdout:
            said = self._decoder.decode(line)
            if isinstance(said, Sample):
                self.samples.append(said)
            else:
                self.outcome = said

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


@contextlib.asynccontextmanager
async def listening(
    endpoint: str, requests: int, prompt_tokens: int, tokens: int
) -> AsyncIterator[Listening]:
    """A front end with so many requests."""
    command = [sys.executable, "-m", "loadtest.recovery.front", endpoint]
    command += ["--requests", str(requests), "--prompt-tokens", str(prompt_tokens)]
    command += ["--tokens", str(tokens)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    front = Listening(process)
    hearing = asyncio.create_task(front.listen())
    try:
        yield front
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await hearing
