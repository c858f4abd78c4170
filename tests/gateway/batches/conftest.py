"""A gateway that stores, over a scripted engine, and a PostgreSQL server."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from penstock_gateway.storage.database import Database
from testing.postgres_server import PostgresServer
from tests.gateway.batches.storing import Storing, storing
from tests.gateway.fake_engine import FakeEngineClient


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    async with storing(
        tmp_path / "data", engine, max_batch_lines=50, max_open_batches=3
    ) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    # Not below pytest's own folder, which is closed to the user that the server runs as.
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server", "fsync=off", "shared_buffers=16MB")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    """The address of a database whose tables nobody has made yet."""
    if server.process is None:
        server.start()
    yield server.url
    if server.process is None:
        server.start()
    database = Database(server.url)

    def drop(connection: Connection) -> None:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))

    database.transaction(drop)
    database.close()
