"""A gateway whose engine hears: real sockets, clients' messages, and text when a test says so."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from penstock.client import SequenceDelta
from penstock.protocol.common import TokenLogprobs
from penstock.request.sampling_params import SamplingParams
from tests.gateway.fake_engine import FakeGeneration, Step
from tests.gateway.live_gateway import LiveGateway
from tests.gateway.media import SeeingEngine
from tests.gateway.transcription.test_held import HearingEngine

SILENCE = bytes(32_000)
"""A second."""


class Listener(HearingEngine):
    """Understands two tokens of each piece, and no piece before `says` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.says = threading.Event()
        self.says.set()
        self.script = self._script

    async def submit(self, *given: Any, speech: Any, **named: Any) -> FakeGeneration:  # type: ignore[override]
        return await SeeingEngine.submit(self, *given, **named)

    def _script(self, prompt: list[int], params: SamplingParams) -> Iterator[Step]:
        while not self.says.is_set():
            yield 0.01
        logprobs = [TokenLogprobs(-0.1, (), ())] * 2
        yield [SequenceDelta(index=0, token_ids=[40, 41], logprobs=logprobs, finish_reason="stop")]


def speech(seconds: float = 0.9) -> bytes:
    """Samples that are loud, and a pause that ends a piece."""
    noise = np.random.default_rng(1).normal(0, 0.1, round(16_000 * seconds))
    loud = (noise.clip(-1, 1) * 32767).astype("<i2").tobytes()
    return loud + SILENCE


def opened(gateway: LiveGateway, **options: Any) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime", **options)


def say(client: ClientConnection, kind: str, **fields: Any) -> None:
    client.send(json.dumps({"type": kind, **fields}))


def append(client: ClientConnection, samples: bytes) -> None:
    say(client, "input_audio_buffer.append", audio=base64.b64encode(samples).decode())


def commit(client: ClientConnection, *, final: bool = False) -> None:
    say(client, "input_audio_buffer.commit", final=final)


def told(client: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.recv(timeout=30))
    return found


def begin(client: ClientConnection) -> None:
    """Up to where sound may come."""
    assert told(client)["type"] == "session.created"
    say(client, "session.update")
