"""A gateway over a real pooling model, which computes in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from penstock.client.pool_request import PoolResult, check_task
from penstock.client.served_model import ModelText
from penstock.config.settings import GatewayConfig
from penstock.protocol.common import Pooling
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.app import create_app
from penstock_worker.loading.load import load
from tests.gateway.fake_engine import FakeEngineClient
from tests.worker.pooling.pooling_models import facts_of, run_vectors


class PoolingEngine(FakeEngineClient):
    """Gives what the worker makes of each input."""

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__()
        facts = facts_of(str(folder), cache)
        self.loaded = load(facts.setup(1))
        self.welcome = facts.welcome(1, 100)
        tokenizer = Tokenizer.from_bytes(facts.tokenizer, add_bos=False, bos_token_id=None)
        self.text = ModelText(tokenizer, None)

    async def pool(self, prompt_token_ids: list[int], pooling: Pooling, **terms: Any) -> PoolResult:
        check_task(pooling.task, self.welcome)
        await asyncio.sleep(0)
        (found,) = run_vectors(self.loaded, [prompt_token_ids], pooling)
        return PoolResult(found, len(prompt_token_ids))


@asynccontextmanager
async def pooling_gateway(folder: Path, cache: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the gateway, without sockets."""
    engine = PoolingEngine(folder, cache)
    app = create_app(engine, GatewayConfig())  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client
    finally:
        engine.loaded.runner.close()
