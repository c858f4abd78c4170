"""Many clients at once, each of which reads one resumable stream to its end."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.http_client import HttpClient
from penstock.errors import PenstockError
from testing.serving import wait_until

PATH = "/v1/completions"
TEMPERATURES = (0.0, 0.7, 1.0)
PATIENCE = 300.0
"""Seconds without an event after which a stream counts as lost."""


@dataclass
class Heard:
    """What one client has got so far. times: when its events came.  connections: requests that it
    sent.  refused: why the stream ended early; empty: it didn't."""

    text: str = ""
    finish: str | None = None
    times: list[float] = field(default_factory=list)
    connections: int = 0
    refused: str = ""

    @property
    def answer(self) -> tuple[str, str | None]:
        """What must not depend on what happened to the cells."""
        return self.text, self.finish

    def gap(self) -> float:
        """Seconds, the longest between two events."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


class CountingClient(HttpClient):
    """The library's client, which counts its connections: each is one attempt."""

    def __init__(self, url: str, key: str, heard: Heard) -> None:
        super().__init__(url, key, PATIENCE / 2)
        self._heard = heard

    def connect(self) -> http.client.HTTPConnection:
        self._heard.connections += 1
        return super().connect()


def body(number: int, tokens: int) -> dict[str, Any]:
    """The request of a stream: no two have the same prompt or seed, and some sample."""
    return {
        "prompt": f"{number} things that a traveller sees from the window of a train: first,",
        "max_tokens": tokens,
        "seed": number,
        "temperature": TEMPERATURES[number % len(TEMPERATURES)],
        "ignore_eos": True,
    }


class Crowd:
    """`streams` clients, each with an API key of its own, which says its cell."""

    def __init__(self, url: str, streams: int, tokens: int) -> None:
        self._url, self._tokens = url, tokens
        self.heard = [Heard() for _ in range(streams)]

    def read(self, meanwhile: Callable[[], None] = lambda: None) -> list[Heard]:
        """Reads all streams to their ends. meanwhile: is called once all have been asked for."""
        with ThreadPoolExecutor(len(self.heard)) as pool:
            reading = [pool.submit(self._read, number) for number in range(len(self.heard))]
            meanwhile()
            for each in reading:
                each.result()
        return self.heard

    def wait_for(self, events: int) -> None:
        """Until every stream has begun, and so many events have come in all."""

        def there() -> bool:
            counts = [len(each.times) for each in self.heard]
            return min(counts) > 0 and sum(counts) >= events

        wait_until(there, PATIENCE, lambda: f"{sum(len(h.times) for h in self.heard)} events")

    def _read(self, number: int) -> None:
        heard = self.heard[number]
        client = CountingClient(self._url, f"key-{number}", heard)
        try:
            for event in client.resumed_events(PATH, body(number, self._tokens), PATIENCE):
                heard.times.append(time.monotonic())
                for choice in event["choices"]:
                    heard.text += choice["text"]
                    heard.finish = choice["finish_reason"] or heard.finish
        except PenstockError as error:
            heard.refused = str(error)
