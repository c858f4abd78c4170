"""A gateway that keeps files, and a runner of its batches, in one event loop without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from penstock.config.settings import GatewayConfig, StorageSettings
from penstock_gateway.app import create_app
from penstock_gateway.batches.process import Runner
from penstock_gateway.storage.store import Store
from tests.gateway.fake_engine import MODEL, FakeEngineClient

ENDED = ("completed", "failed", "expired", "cancelled")
URL = "/v1/completions"


@dataclass
class Storing:
    """app: the gateway's, over `engine`.  http: asks it."""

    store: Store
    app: Any
    http: httpx.AsyncClient
    engine: FakeEngineClient

    @asynccontextmanager
    async def running(self, longest_line: int = 100_000) -> AsyncIterator[Runner]:
        """A runner at work; cut off at the end, wherever it is."""
        ring = self.app.state.service.ring
        runner = Runner(self.store, self.app, ring, longest_line=longest_line)
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def upload(self, content: bytes, headers: Any = None, **fields: str) -> httpx.Response:
        return await self.http.post(
            "/v1/files",
            files={"file": ("requests.jsonl", content)},
            data={"purpose": "batch", **fields},
            headers=headers,
        )

    async def begin(self, content: bytes, headers: Any = None, **more: Any) -> str:
        """A batch's id."""
        file = await self.upload(content, headers)
        assert file.status_code == 200, file.text
        body = {"input_file_id": file.json()["id"], "endpoint": URL, **more}
        made = await self.http.post("/v1/batches", json=body, headers=headers)
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    async def batch(self, batch_id: str, headers: Any = None) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/batches/{batch_id}", headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ended(self, batch_id: str, headers: Any = None) -> dict[str, Any]:
        while (batch := await self.batch(batch_id, headers))["status"] not in ENDED:
            await asyncio.sleep(0.01)
        return batch

    async def results(self, file_id: str, headers: Any = None) -> list[dict[str, Any]]:
        answer = await self.http.get(f"/v1/files/{file_id}/content", headers=headers)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]


@asynccontextmanager
async def storing(
    folder: Path,
    engine: FakeEngineClient,
    *,
    config: GatewayConfig | None = None,
    **settings: Any,
) -> AsyncIterator[Storing]:
    made = StorageSettings(data_dir=str(folder), **settings)
    store = Store(made, str(folder))
    config = config or GatewayConfig(max_body_bytes=200_000)
    app = create_app(engine, config, store=store)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        try:
            yield Storing(store, app, http, engine)
        finally:
            store.close()


def line(custom_id: str, url: str = URL, method: str = "POST", **body: Any) -> bytes:
    """A line of a batch's file."""
    request = {"model": MODEL, "prompt": "abc", "max_tokens": 4, **body}
    whole = {"custom_id": custom_id, "method": method, "url": url, "body": request}
    return json.dumps(whole).encode() + b"\n"
