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
from testing.pooling_models import facts_of, run_vectors
from tests.gateway.byte_tokenizer import ByteTokenizer, LineTemplate
from tests.gateway.fake_engine import FakeEngineClient


class WordTemplate(LineTemplate):
    """A LineTemplate whose lines are read as the model's words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(ByteTokenizer())
        self._words = tokenizer

    def encode(self, text: str) -> list[int]:
        return self._words.encode(text, add_special=False)


class PoolingEngine(FakeEngineClient):
    """Gives what the worker makes of each input."""

    def __init__(self, folder: Path, cache: Path, *, with_template: bool = False) -> None:
        """with_template: conversations become lines of words."""
        super().__init__()
        facts = facts_of(str(folder), cache)
        self.loaded = load(facts.setup(1))
        self.welcome = facts.welcome(1, 100)
        tokenizer = Tokenizer.from_bytes(facts.tokenizer, add_bos=False, bos_token_id=None)
        template: Any = WordTemplate(tokenizer) if with_template else None
        self.text = ModelText(tokenizer, template)

    async def pool(self, prompt_token_ids: list[int], pooling: Pooling, **terms: Any) -> PoolResult:
        check_task(pooling.task, self.welcome)
        await asyncio.sleep(0)
        (found,) = run_vectors(self.loaded, [prompt_token_ids], pooling)
        return PoolResult(found, len(prompt_token_ids))


@asynccontextmanager
async def pooling_gateway(
    folder: Path, cache: Path, *, with_template: bool = False
) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the gateway, without sockets. with_template: see PoolingEngine."""
    engine = PoolingEngine(folder, cache, with_template=with_template)
    app = create_app(engine, GatewayConfig())  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client
    finally:
        engine.loaded.runner.close()
