"""A folder of contents is one database's: no sweep removes what another one's records lead to."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from penstock.config.settings import StorageSettings
from penstock.errors import StartupError
from penstock_gateway.storage.store import Store
from tests.gateway.batches.storing import line, storing
from tests.gateway.fake_engine import FakeEngineClient

OLD = 1_000_000.0
"""Unix seconds: of what has lain there for long."""


def open_store(folder: Path, database: Path) -> Store:
    url = f"sqlite:///{database}"
    return Store(StorageSettings(data_dir=str(folder), database_url=url), str(folder))


def age(folder: Path) -> None:
    for path in (folder / "files").iterdir():
        os.utime(path, (OLD, OLD))


async def swept(folder: Path, leftover: str) -> None:
    while (folder / "files" / leftover).exists():
        await asyncio.sleep(0.01)


async def test_another_database_is_refused_and_removes_nothing(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    data = tmp_path / "data"
    url = f"sqlite:///{tmp_path / 'one.db'}"
    async with storing(data, engine, database_url=url) as gateway:
        made = (await gateway.upload(line("a"))).json()["id"]
    age(data)
    with pytest.raises(StartupError, match="holds the files of the database"):
        open_store(data, tmp_path / "two.db")
    (data / "files" / "file-0.part-1").write_bytes(b"half")
    age(data)
    async with storing(data, engine, database_url=url) as gateway, gateway.running():
        await asyncio.wait_for(swept(data, "file-0.part-1"), 30)
        got = await gateway.http.get(f"/v1/files/{made}/content")
        assert got.content == line("a")


async def test_a_folder_from_before_there_were_marks(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """Goes to the database that knows what lies in it, and to no other."""
    data = tmp_path / "data"
    async with storing(data, engine, database_url=f"sqlite:///{tmp_path / 'one.db'}") as gateway:
        await gateway.upload(line("a"))
    mark = (data / "database-id").read_text()
    (data / "database-id").unlink()
    with pytest.raises(StartupError, match="knows none of them"):
        open_store(data, tmp_path / "two.db")
    assert not (data / "database-id").exists()
    open_store(data, tmp_path / "one.db").close()
    assert (data / "database-id").read_text() == mark


async def test_a_folder_that_becomes_anothers_is_not_swept(
    tmp_path: Path, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two databases mark a new folder at once, or another one is mounted there."""
    monkeypatch.setattr("penstock_gateway.batches.process.SWEEP_EVERY", 0.01)
    async with storing(tmp_path, engine) as gateway:
        (tmp_path / "database-id").write_text("another\n")
        other = tmp_path / "files" / ("file-" + "0" * 32)
        other.write_bytes(b"another's")
        age(tmp_path)
        looks = 0
        real = gateway.store.mark.holds

        def holds() -> bool:
            nonlocal looks
            looks += 1
            return real()

        monkeypatch.setattr(gateway.store.mark, "holds", holds)
        async with gateway.running():
            while looks < 3:
                await asyncio.sleep(0.01)
        assert other.read_bytes() == b"another's"


def test_many_processes_of_a_system_mark_a_new_folder(tmp_path: Path) -> None:
    stores = [open_store(tmp_path / "data", tmp_path / "one.db") for _ in range(4)]
    assert all(store.mark.holds() for store in stores)
    for store in stores:
        store.close()


@pytest.mark.parametrize("text", ["", "x" * 5000, "\xff"])
def test_a_mark_that_is_none(tmp_path: Path, text: str) -> None:
    open_store(tmp_path / "data", tmp_path / "one.db").close()
    (tmp_path / "data" / "database-id").write_text(text)
    with pytest.raises(StartupError, match="allowed: a folder of that database"):
        open_store(tmp_path / "data", tmp_path / "one.db")
