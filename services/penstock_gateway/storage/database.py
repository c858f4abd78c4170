"""The database: SQLite in a file, or PostgreSQL by its URL, both through SQLAlchemy.

Every piece of work is one short transaction, in a thread that does nothing else, so no event loop
waits for a disk.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    insert,
    literal,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from penstock import logs
from penstock.errors import PenstockError, StartupError
from penstock_gateway.http.errors import unavailable
from penstock_gateway.storage import tables
from penstock_gateway.storage.layouts import bring_up

log = logs.get(__name__)

Done = TypeVar("Done")

BUSY_SECONDS = 30.0
"""How long a transaction waits for another process's."""
RETRY_AFTER = 5.0
"""Seconds, which a client is told, after which the database may have an answer again."""
_LAYOUT_LOCK = 0x70656E73
"""Of PostgreSQL's advisory locks: who makes the tables."""
_OWNER_LOCK = 0x70656E74
"""Who adds to what an owner has; the space of its second kind of locks, of pairs."""


class DatabaseUnavailable(PenstockError):
    """The database has no answer now: it is started again, or its disk is full. A process that
    finds that is started again, too, as long as it takes; what serves goes on."""


class Database:
    """One process's way to the records.  Raises DatabaseUnavailable, and StartupError where there
    is none, or one of another layout."""

    def __init__(self, url: str) -> None:
        self._sqlite = url.startswith("sqlite:")
        self._engine = _engine_of(url, sqlite_file=self._sqlite)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        try:
            self.id = self.transaction(self._make_tables)
            """Which database it is, for as long as it has its tables."""
        except StartupError:
            self.close()
            raise
        except SQLAlchemyError as error:
            self.close()
            kind = DatabaseUnavailable if isinstance(error, OperationalError) else StartupError
            raise kind(_unusable(url, error, sqlite_file=self._sqlite)) from None

    async def run(self, work: Callable[[Connection], Done]) -> Done:
        """What `work` returns, done in one transaction: wholly, or not at all where it raises.
        Raises HTTPError 503 where the database doesn't answer now."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self.transaction, work)
        except OperationalError as error:
            log.error("the database doesn't answer", reason=str(error.orig))
            raise unavailable(
                "the storage is not available at the moment", "storage_unavailable", RETRY_AFTER
            ) from error

    def insert_new(self, connection: Connection, table: Table, **values: object) -> bool:
        """Inserts a row. False: one with its key is there already, and stays as it is."""
        make = sqlite.insert if self._sqlite else postgresql.insert
        # By what it returns: PostgreSQL's driver counts no inserted rows.
        new = make(table).values(**values).on_conflict_do_nothing().returning(literal(1))
        return connection.execute(new).first() is not None

    def alone_for(self, connection: Connection, owner: str) -> None:
        """To the end of the transaction, no other that asks for it works for this owner: what is
        counted here is what there is. With SQLite, no other works at all."""
        if not self._sqlite:
            lock = text("SELECT pg_advisory_xact_lock(:space, hashtext(:owner))")
            connection.execute(lock, {"space": _OWNER_LOCK, "owner": owner})

    def close(self) -> None:
        """After it, nothing runs any more."""
        self._thread.shutdown()
        self._engine.dispose()

    def transaction(self, work: Callable[[Connection], Done]) -> Done:
        """As `run`, for a thread that may wait."""
        with self._engine.begin() as connection:
            return work(connection)

    def _make_tables(self, connection: Connection) -> str:
        """The database's id."""
        if not self._sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LAYOUT_LOCK})"))
        tables.metadata.create_all(connection)
        version = connection.scalar(select(tables.layout.c.version))
        if version is None:
            connection.execute(insert(tables.layout).values(id=1, version=tables.VERSION))
        elif not bring_up(connection, version):
            raise StartupError(
                f"the database has layout {version}; this version of Penstock supports "
                f"{tables.VERSION} and older"
            )
        self.insert_new(connection, tables.identity, id=1, name=os.urandom(16).hex())
        return str(connection.scalar(select(tables.identity.c.name)))


def _unusable(url: str, error: SQLAlchemyError, *, sqlite_file: bool) -> str:
    if sqlite_file and isinstance(error, OperationalError):
        return f"--data-dir: {url.removeprefix('sqlite:///')} can't be used: {error.orig}"
    # Its text holds the address, and may hold a password.
    reason = type(error.__cause__ or error).__name__
    return f"--database-url: the database can't be used ({reason})"


def _engine_of(url: str, *, sqlite_file: bool) -> Engine:
    if not sqlite_file:
        try:
            return create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise StartupError(
                f"--database-url needs the package {error.name}: pip install 'penstock[postgres]'"
            ) from None
    file = Path(url.removeprefix("sqlite:///"))
    _make_private(file)
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin_at_once)
    return engine


def _make_private(file: Path) -> None:
    """SQLite makes what lies beside its file with the same mode."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StartupError(f"--data-dir: {file} can't be written: {error.strerror}") from None


def _set_up(connection: sqlite3.Connection, _: object) -> None:
    # Python's module would begin transactions by itself, and later than `begin` says.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_at_once(connection: Connection) -> None:
    """With the lock for writing: one that gets it later may find that what it read has changed,
    and fails."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
