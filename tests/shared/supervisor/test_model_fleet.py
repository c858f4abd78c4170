"""All models of a server, as who asks for them hears of it; without processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from penstock.config.model_list import ModelEntry
from penstock.config.settings import ModelsSettings, ServeConfig
from penstock.errors import StartupError
from penstock.net.runtime_dir import RuntimeDir
from penstock.protocol.from_supervisor import FromSupervisor, ModelState, ModelStates
from penstock.protocol.to_supervisor import Introduce, ToSupervisor, Want
from penstock.supervisor.models import residents
from penstock.supervisor.models.fleet import ModelFleet
from penstock.supervisor.models.processes import BoundedRestarts, Deaths, ModelProcesses
from penstock.supervisor.restarts import GiveUp, Restart

pytestmark = pytest.mark.timeout(60)


class Holder:
    """A gateway's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def tell(self, message: ToSupervisor) -> None:
        self.writer.write(msgspec.json.encode(message) + b"\n")

    async def failure(self) -> ModelState:
        """The next one that is told."""
        async with asyncio.timeout(20):
            while True:
                line = await self._reader.readline()
                message = msgspec.json.decode(line, type=FromSupervisor)
                if isinstance(message, ModelStates):
                    for state in message.models:
                        if state.presence == "failed":
                            return state


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[ModelFleet]:
    entry = ModelEntry(model="any", name="large", load="on-demand")
    config = ServeConfig(models=ModelsSettings(models_memory_gib=2.0))
    runtime = RuntimeDir.create()
    fleet = ModelFleet([entry], config, runtime, grace=1.0)
    await fleet.socket.open()
    running = asyncio.create_task(fleet.run())
    yield fleet
    await fleet.stop()
    await running
    runtime.remove()


@pytest.fixture
async def holder(fleet: ModelFleet) -> AsyncIterator[Holder]:
    holder = Holder(*await asyncio.open_unix_connection(str(fleet.socket.path)))
    holder.tell(Introduce("one"))
    yield holder
    holder.writer.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residents, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(residents, "LAST_RETRY", 0.01)


async def test_each_failure_is_told_though_the_state_is_the_same(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(processes: ModelProcesses) -> tuple[Path, float]:
        return Path("prepared"), 9.0

    monkeypatch.setattr(ModelProcesses, "prepare", prepare)
    for _ in range(3):
        holder.tell(Want("large"))
        assert "needs 9.00 GiB; 2 GiB are all there is" in (await holder.failure()).reason
        await asyncio.sleep(0.02)  # It may be tried again.


async def test_what_nobody_foresaw_is_a_failure_of_the_model(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(processes: ModelProcesses) -> tuple[Path, float]:
        raise ValueError("a manifest that makes no sense")

    monkeypatch.setattr(ModelProcesses, "prepare", prepare)
    holder.tell(Want("large"))
    assert "a manifest that makes no sense" in (await holder.failure()).reason


async def test_who_waits_for_a_model_hears_that_the_server_leaves(
    fleet: ModelFleet, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepares = asyncio.Event()

    async def prepare(processes: ModelProcesses) -> tuple[Path, float]:
        prepares.set()
        await asyncio.Event().wait()
        return 0.0

    monkeypatch.setattr(ModelProcesses, "prepare", prepare)
    holder.tell(Want("large"))
    await prepares.wait()
    await fleet.stop()
    assert (await holder.failure()).reason == "the server is shutting down"


async def test_a_holder_that_comes_back_has_its_number(
    fleet: ModelFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, ToSupervisor | None]] = []
    monkeypatch.setattr(fleet.socket, "_heard", lambda *words: heard.append(words))
    for name in ("one", "two", "one"):
        reader, writer = await asyncio.open_unix_connection(str(fleet.socket.path))
        writer.write(msgspec.json.encode(Introduce(name)) + b"\n")
        await reader.readline()
        writer.close()
        while heard[-1][1] is not None:
            await asyncio.sleep(0.01)
    numbers = [number for number, message in heard if message is not None]
    assert numbers[0] == numbers[2] != numbers[1]
    # Who doesn't say who it is is not heard.
    reader, writer = await asyncio.open_unix_connection(str(fleet.socket.path))
    writer.write(msgspec.json.encode(Want("large")) + b"\n")
    assert await reader.read() == b""
    writer.close()
    assert len(heard) == 6


async def test_a_server_whose_models_all_fail_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(self: ModelProcesses) -> float:
        raise StartupError(f"{self.entry.name} is not there")

    monkeypatch.setattr(ModelProcesses, "prepare", prepare)
    entries = [ModelEntry(model=name, name=name) for name in ("a", "b")]
    runtime = RuntimeDir.create()
    fleet = ModelFleet(entries, ServeConfig(), runtime, grace=1.0)
    await fleet.socket.open()
    running = asyncio.create_task(fleet.run())
    try:
        with pytest.raises(StartupError, match=r"a: a is not there; b: b is not there"):
            await fleet.settled()
    finally:
        await fleet.stop()
        await running
        runtime.remove()


def test_a_model_that_only_dies_is_given_up() -> None:
    deaths = Deaths()
    engine, worker = BoundedRestarts(deaths), BoundedRestarts(deaths)
    outcomes = []
    for now in range(6):
        policy = (engine, worker)[now % 2]
        policy.started(1000.0 + 10 * now)
        outcomes.append(policy.died(-9, 1005.0 + 10 * now, system_was_ready=True))
    assert [isinstance(each, GiveUp) for each in outcomes] == [False] * 5 + [True]
    assert "6 times since it was last ready" in str(outcomes[-1])
    # Those of long ago don't count.
    assert isinstance(engine.died(-9, 9000.0, system_was_ready=True), Restart)
