"""Streams without end: each request of the mix again and again, compared with its twin."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType

from testing.streams.mix import Request
from testing.streams.reading import Answer, Broken, Reading, connected

TIMEOUT = 180.0
"""Seconds of silence in one stream that are too many."""


@dataclass
class Score:
    equal: int = 0  # streams whose answer was their twin's
    different: list[str] = field(default_factory=list)  # which, and how
    broken: list[str] = field(default_factory=list)  # which, and why

    @property
    def wrong(self) -> list[str]:
        return self.broken + self.different


Position = dict[int, tuple[Reading, list[int]]]
"""Which reading each stream was in, and how far each choice had come."""


class Fleet:
    """`async with` keeps a stream of every request of the mix open; at the end they run out."""

    def __init__(self, url: str, requests: list[Request]) -> None:
        self._client = connected(url, len(requests), timeout=TIMEOUT)
        self._requests = requests
        self._twins: list[Answer] = []
        self._readings: dict[int, Reading] = {}
        self._over = False
        self._tasks: list[asyncio.Task[None]] = []
        self.score = Score()

    async def __aenter__(self) -> Fleet:
        """Raises Broken where not even the undisturbed streams come through."""
        undisturbed = [self._read(number) for number in range(len(self._requests))]
        self._twins = await asyncio.gather(*undisturbed)
        self._tasks = [
            asyncio.create_task(self._repeat(number)) for number in range(len(self._requests))
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=kind is not None)
        await self._client.aclose()

    async def _read(self, number: int) -> Answer:
        """One stream, to its end. Raises Broken."""
        reading = self._readings[number] = Reading(self._requests[number])
        return await reading.run(self._client)

    async def _repeat(self, number: int) -> None:
        while not self._over:
            try:
                answer = await self._read(number)
            except Broken as error:
                self.score.broken.append(f"{self._requests[number].name}: {error}")
                await asyncio.sleep(0.2)
                continue
            if answer == self._twins[number]:
                self.score.equal += 1
            else:
                self.score.different.append(
                    f"{self._requests[number].name}: {self._twins[number]} became {answer}"
                )

    def position(self) -> Position:
        """Where every stream stands."""
        return {n: (reading, list(reading.moved)) for n, reading in self._readings.items()}

    def moved_since(self, position: Position) -> int:
        """Streams of which every choice has gained something since, or ended."""
        return sum(self._has_moved(number, *stood) for number, stood in position.items())

    def _has_moved(self, number: int, reading: Reading, stood: list[int]) -> bool:
        if self._readings[number] is not reading:
            return True
        return all(reading.moved[choice] > stood[choice] for choice in reading.waits_for)

    async def wait_moved(self, position: Position, streams: int, seconds: float) -> float:
        """Waits until so many streams have moved. Returns the seconds; raises TimeoutError."""
        begun = time.monotonic()
        while self.moved_since(position) < streams:
            if time.monotonic() - begun > seconds:
                stuck = len(position) - self.moved_since(position)
                raise TimeoutError(f"{stuck} streams stood still for {seconds:g} s")
            await asyncio.sleep(0.01)
        return time.monotonic() - begun
