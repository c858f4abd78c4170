"""Scripted engine cores, and a client that has all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import SamplingParams
from penstock.client import EngineClient
from testing.scripted_engine import FAST, ScriptedEngine
from tests.shared.client.client_requests import until

LONG = SamplingParams(max_tokens=50, seed=1)
BOOTS = (b"boot-one", b"boot-two", b"boot-thr")


class Scene:
    """Engines a, b, … in a folder, and the client that has all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[ScriptedEngine] = []
        self.client: EngineClient | None = None

    def endpoint(self, number: int) -> str:
        return f"ipc://{self.folder}/{'abcdefghijkl'[number]}"

    def engine(self, number: int, **changes: Any) -> ScriptedEngine:
        boot = BOOTS[number] if number < len(BOOTS) else f"boot-{number:03d}".encode()
        changes = {"boot": boot, "telling": True, **changes}
        engine = ScriptedEngine(self.endpoint(number), **changes)
        self.engines.append(engine)
        return engine

    async def connect(self, count: int, **keywords: Any) -> EngineClient:
        places = ",".join(self.endpoint(number) for number in range(count))
        self.client = EngineClient(places, name="test", settings=FAST, **keywords)
        await self.client.start()
        return self.client

    async def ready(self, count: int) -> None:
        client = self.client
        assert client is not None
        await until(lambda: sum(each.ready for each in client.engines) == count)

    async def two(self, **keywords: Any) -> tuple[ScriptedEngine, ScriptedEngine, EngineClient]:
        first, second = self.engine(0), self.engine(1)
        client = await self.connect(2, **keywords)
        await self.ready(2)
        return first, second, client


async def on(engine: ScriptedEngine, other: ScriptedEngine, client: EngineClient) -> Any:
    """A stream on `engine`: the other one has much to do."""
    other.tell(running=100)
    await until(lambda: any(e.status and e.status.running == 100 for e in client.engines))
    generation = await client.submit(list(b"x"), LONG, name="r")
    other.tell(running=0)
    await until(lambda: sum(e.status.running for e in client.engines if e.status) < 100)
    assert len(engine.submits) == 1
    assert not other.submits
    return generation
