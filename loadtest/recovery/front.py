"""A front end with many requests open, each of which must say what it would say undisturbed.

Its one argument is a JSON array, what Front takes. Writes a JSON object in a line, a Sample, at
every PACE; and at the end an Outcome.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import msgspec

from loadtest.recovery.listening import Outcome, Sample
from penstock.client.engine_client import EngineClient
from penstock.errors import PenstockError
from penstock.request.sampling_params import SamplingParams
from testing.streams.timed import FIRST_ID, IDS, beside
from testing.words import text

PACE = 0.05
SUBMITTED_AT_ONCE = 256
"""Not yet accepted, while the requests come: how one comes back is the client's own affair."""
KEPT = 20


class Front:
    """requests: so many.  prompt_tokens, tokens: of each, in and out."""

    def __init__(self, endpoint: str, requests: int, prompt_tokens: int, tokens: int) -> None:
        self._client = EngineClient(endpoint, name="recovery")
        self._requests, self._tokens = requests, tokens
        # Token ids that all prompts share as objects: 280 of 130,000 would be a gigabyte.
        self._line = [FIRST_ID + i % IDS for i in range(prompt_tokens)]
        self._open = requests
        self._accepted = self._given = 0
        self.outcome = Outcome()

    async def run(self) -> None:
        """Until the last has ended."""
        gate = asyncio.Semaphore(SUBMITTED_AT_ONCE)
        await self._client.start()
        try:
            async with beside([self._tell()]):
                await self._client.wait_connected(60.0)
                while self._client.status is None or not self._client.status.ready:
                    await asyncio.sleep(PACE)
                await asyncio.gather(*(self._follow(seed, gate) for seed in range(self._requests)))
        finally:
            await self._client.close()

    async def _follow(self, seed: int, gate: asyncio.Semaphore) -> None:
        params = SamplingParams(seed=seed, max_tokens=self._tokens, ignore_eos=True)
        prompt = [FIRST_ID + seed % IDS, *self._line[1:]]
        said: list[str] = []
        try:
            async with gate:
                generation = await self._client.submit(prompt, params, name=str(seed))
            self._accepted += 1
            async for deltas in generation:
                for delta in deltas:
                    self._given += len(delta.token_ids)
                    said.append(delta.text)
                    if delta.error is not None:
                        self._note(self.outcome.failed, f"{seed}: {delta.error}")
                        return
        except PenstockError as error:
            self._note(self.outcome.failed, f"{seed}: {error!r}")
            return
        finally:
            self._open -= 1
        if "".join(said) == text(seed, self._tokens):
            self.outcome.equal += 1
        else:
            self._note(self.outcome.different, f"{seed}: {''.join(said)!r}")

    def _note(self, those: list[str], words: str) -> None:
        self.outcome.wrong += 1
        if len(those) < KEPT:
            those.append(words)

    async def _tell(self) -> None:
        while True:
            say(self._sample())
            await asyncio.sleep(PACE)

    def _sample(self) -> Sample:
        """A sample of this moment."""
        status, (engine,) = self._client.status, self._client.engines
        boot = engine.welcome.boot if engine.connected and engine.welcome is not None else ""
        held = status.waiting + status.running if boot and status is not None else 0
        return Sample(time.monotonic(), boot, held, self._open, self._accepted, self._given)


def say(message: Sample | Outcome) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    front = Front(*json.loads(sys.argv[1]))
    asyncio.run(front.run())
    say(front.outcome)
