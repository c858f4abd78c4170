"""A gateway that stores, over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.batches.storing import Storing, storing
from tests.gateway.fake_engine import FakeEngineClient


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    async with storing(
        tmp_path / "data", engine, max_batch_lines=50, max_open_batches=3
    ) as gateway:
        yield gateway
