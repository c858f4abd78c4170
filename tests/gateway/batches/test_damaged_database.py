"""A damaged SQLite file: storage is off, and says so; everything else is served, and the file is
left as it is."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.batches.storing import Storing, storing
from tests.gateway.fake_engine import FakeEngineClient, say

pytestmark = pytest.mark.timeout(120)

URL = "/v1/responses"
PAGE = 4096


def without_header(whole: bytes) -> bytes:
    return b"\xff" * 100 + whole[100:]


def without_its_middle(whole: bytes) -> bytes:
    """Only the page of the schema is left."""
    return whole[:PAGE] + b"\xa5" * (len(whole) - PAGE)


def a_text(whole: bytes) -> bytes:
    return b"These are only notes.\n" * (len(whole) // 22)


DAMAGES = (without_header, without_its_middle, a_text)


def damage(file: Path, how: Callable[[bytes], bytes]) -> bytes:
    """What the file holds afterwards."""
    with sqlite3.connect(file) as connection:
        # What is in the journal would hide what is in the file.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    damaged = how(file.read_bytes())
    file.write_bytes(damaged)
    return damaged


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("restarted", [False, True])
async def test_storage_alone_is_off(
    tmp_path: Path,
    how: Callable[[bytes], bytes],
    restarted: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngineClient(say("Yes."))
    settings = {"stored_response_hours": 1}
    file = tmp_path / "penstock.db"
    async with storing(tmp_path, engine, **settings) as gateway:
        assert (await gateway.upload(b"{}")).status_code == 200
        if not restarted:
            damaged = damage(file, how)
            await storage_is_off(gateway)
    if restarted:
        damaged = damage(file, how)
        async with storing(tmp_path, engine, **settings) as gateway:
            await storage_is_off(gateway)
    assert file.read_bytes() == damaged
    # With the fields of the line.
    told = [str(vars(each)) for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(told) == 1, told
    assert str(file) in told[0]
    assert "move the file away" in told[0]
    assert "backup" in told[0]
    for left in tmp_path.glob("penstock.db*"):
        left.unlink()
    (tmp_path / "database-id").unlink()
    for content in (tmp_path / "files").iterdir():
        content.unlink()
    async with storing(tmp_path, engine, **settings) as gateway:
        assert (await gateway.upload(b"{}")).status_code == 200


async def storage_is_off(gateway: Storing) -> None:
    http = gateway.http
    async with gateway.running():
        refused = [
            await http.get("/v1/files"),
            await http.get("/v1/batches"),
            await gateway.upload(b"{}"),
            await http.get(f"{URL}/resp_1"),
            await http.delete(f"{URL}/resp_1"),
            await http.post(URL, json={"input": "Hi", "store": True}),
            await http.post(URL, json={"input": "Hi", "background": True}),
        ]
        await asyncio.sleep(0.5)  # For the runner to look.
    for answer in refused:
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "storage_damaged"
        assert "damaged" in answer.json()["error"]["message"]
    answer = await http.post(URL, json={"input": "Hi", "max_output_tokens": 8})
    assert answer.status_code == 200, answer.text
    assert answer.json()["store"] is False
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    assert (await http.post("/v1/chat/completions", json=chat)).status_code == 200
    assert (await http.get("/metrics")).status_code == 200
