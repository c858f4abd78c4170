"""A gateway that stores conversations, and OpenAI's SDK as its client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.gateway.batches.storing import Storing, storing
from tests.gateway.conversations.conversing import client
from tests.gateway.fake_engine import FakeEngineClient, say


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    engine.script = say("Yes.")
    async with storing(
        tmp_path / "data",
        engine,
        stored_response_hours=1,
        max_stored_conversations=3,
        max_conversation_items=8,
    ) as gateway:
        yield gateway


@pytest.fixture
async def sdk(gateway: Storing) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(gateway) as sdk:
        yield sdk
