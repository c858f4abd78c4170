"""A front end that has a model fall asleep or wake while workers are missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.client import EngineClient, control
from penstock.errors import EngineUnavailable
from penstock.protocol.to_frontend import Welcome
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


class Sleeping(ScriptedEngine):
    def welcome(self) -> Welcome:
        return msgspec.structs.replace(super().welcome(), sleeps=True)


@pytest.fixture
async def engine(endpoint: str) -> AsyncIterator[ScriptedEngine]:
    engine = Sleeping(endpoint)
    yield engine
    await engine.die()


async def test_who_waits_hears_that_there_is_no_worker(
    engine: ScriptedEngine, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MISSING_PATIENCE", 0.3)
    engine.tell(missing=(0, 2), ready=False, sleeping=1)
    await until(lambda: client.sleeping)
    for told in (client.put_to_sleep(2), client.wake_up()):
        with pytest.raises(EngineUnavailable, match=r"no worker of rank 0, 2 for 0\.3 s; it does"):
            await told


async def test_a_worker_that_comes_back_in_time_is_waited_for(
    engine: ScriptedEngine, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take any time: the worker loads, or ends a step."""
    monkeypatch.setattr(control, "MISSING_PATIENCE", 0.3)
    engine.tell(missing=(0,), sleeping=1)
    asked = asyncio.create_task(client.put_to_sleep())
    for missing in ((), (0,), ()):
        await asyncio.sleep(0.15)
        engine.tell(missing=missing)
    await asyncio.sleep(0.6)
    assert not asked.done()
    engine.tell(asleep=True)
    await asked
