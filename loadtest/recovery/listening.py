"""The front end's process, what it says, and what can be read off that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

PATIENCE = 600.0
LOOK = 0.02


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Where the front end stands at one moment."""

    at: float  # seconds of the machine's monotonic clock
    boot: str  # of the engine core in the session; empty without one
    held: int  # requests that the engine core's last Status counts, waiting and running
    open: int  # requests that have not ended
    accepted: int  # requests so far, each counted once
    tokens: int  # that came so far


class Outcome(msgspec.Struct, tag="outcome"):
    """What became of all requests."""

    equal: int = 0  # that said what they would have said undisturbed
    wrong: int = 0  # all others
    failed: list[str] = []  # the first of them, in words
    different: list[str] = []  # the first of them, in words


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


class Recovery(msgspec.Struct, frozen=True):
    """Seconds from the blow on; None: not while it was looked at."""

    first: float | None  # until the first token that the next life gave
    accepted: float | None  # until the engine core said that it has all that are open


def recovery(samples: Sequence[Sample], blow: float) -> Recovery:
    """After the engine core was killed at the moment `blow`.

    As coarse as samples are, and `accepted` as Status is: neither is flattered by that.
    """
    before = [sample for sample in samples if sample.at < blow and sample.boot]
    after = [sample for sample in samples if sample.at >= blow]
    if not before:
        return Recovery(None, None)
    dead = before[-1].boot
    back = next((i for i, each in enumerate(after) if each.boot not in ("", dead)), None)
    if back is None:
        return Recovery(None, None)
    # What the dead one had sent may still have come before its session was over.
    known = after[back - 1].tokens if back else before[-1].tokens
    first = next((each.at - blow for each in after[back:] if each.tokens > known), None)
    accepted = next((each.at - blow for each in after[back:] if each.held >= each.open), None)
    return Recovery(first, accepted)
