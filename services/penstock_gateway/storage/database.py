"""The database: SQLite in a file, or PostgreSQL by its URL, both through SQLAlchemy.

Every piece of work is one short transaction, in a thread that does nothing else, so no event loop
waits for a disk.  SQLite lets one write at a time, and has one thread; PostgreSQL has one for each
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    insert,
    literal,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from sqlalchemy.pool import NullPool

from penstock.errors import PenstockError, StartupError
from penstock.process import logs
from penstock_gateway.http.errors import SERVER, HTTPError, unavailable
from penstock_gateway.storage import tables
from penstock_gateway.storage.layouts import bring_up

log = logs.get(__name__)

Done = TypeVar("Done")

Kind = Literal["write", "read", "free"]
"""Kinds of work: `read` changes nothing, and `free` makes room; both are done on a full disk,
too."""

BUSY_SECONDS = 30.0
"""How long a transaction waits for another process's."""
CONNECT_SECONDS = 5
"""How long PostgreSQL may take to accept a connection."""
SILENCE_SECONDS = 15
"""How long a network may lose what is sent to PostgreSQL, until the connection counts as broken;
and how long it may be silent, until it is asked whether it is there."""
PROBE_SECONDS, PROBES = 5, 3
"""How often it is asked, where it doesn't answer; and how many times, where the system has no
`tcp_user_timeout`. With one, the first without an answer is the last."""
DEADLOCK = "40P01"
"""PostgreSQL's name of it."""
DEADLOCKS = 4
"""How many of them a transaction may meet."""
RETRY_AFTER = 5.0
"""Seconds, which a client is told, after which the database may have an answer again."""
RESERVE = 1 << 20
"""Bytes of a file beside SQLite's that is given up where the disk is full, so that what makes room
has room itself for its journal."""
AFTERWARDS = "penstock: after the commit"
"""What is to be done then, beside a connection."""
_LAYOUT_LOCK = 0x70656E73
"""Key of the PostgreSQL advisory lock of who makes the tables."""
_OWNER_LOCK = 0x70656E74
"""Key of the locks that one who adds to an owner's data holds; in the space of locks with two
keys."""


class DatabaseUnavailable(PenstockError):
    """The database has no answer now: it is started again, or its disk is full. A process that
    finds that is started again, too, as long as it takes; what serves goes on."""


class DatabaseDamaged(HTTPError):
    """SQLite's file isn't one, or contradicts itself. From then on the process leaves it alone, so
    that what is in it can still be rescued; what needs no storage is served."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "the storage is off, since its database is damaged; the server's log says what to do",
            type=SERVER,
            code="storage_damaged",
        )


class Database:
    """One process's way to the records.  Raises DatabaseUnavailable, and StartupError where there
    is none, or one of another layout. One that is damaged refuses all work.

    connections: the most that are open to PostgreSQL at once; each is opened when it is needed.
    """

    def __init__(self, url: str, *, connections: int = 1) -> None:
        self._sqlite = url.startswith("sqlite:")
        connections = 1 if self._sqlite else connections
        self._engine = _sqlite_engine(url) if self._sqlite else _postgres_engine(url, connections)
        self._url = url
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="database")
        self.damaged = False
        self._note_silence = logs.Seldom(log.error)
        self._reserve = _Reserve(Path(url.removeprefix("sqlite:///"))) if self._sqlite else None
        self._kept_open: contextlib.ExitStack = contextlib.ExitStack()
        self._kept: Connection | None = None
        try:
            self.id = self.transaction(self._make_tables, "free")
            """The database's id, for as long as it has its tables; a damaged database gets one that
            no other has."""
            if self._sqlite:
                self._keep_open()
        except DatabaseDamaged:
            self.id = os.urandom(16).hex()
        except StartupError:
            self.close()
            raise
        except SQLAlchemyError as error:
            self.close()
            kind = DatabaseUnavailable if isinstance(error, OperationalError) else StartupError
            raise kind(_unusable(url, error, sqlite_file=self._sqlite)) from None

    async def run(self, work: Callable[[Connection], Done], kind: Kind = "write") -> Done:
        """What `work` returns, done in one transaction: wholly, or not at all where it raises.
        Raises HTTPError 503 where the database doesn't answer now, or is damaged."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self.transaction, work, kind)
        except (OperationalError, NoConnectionLeft) as error:
            self._note_silence(
                "the database doesn't answer", reason=str(getattr(error, "orig", error))
            )
            message = "the storage is not available at the moment"
            if _is_full(error):
                message = "the storage's disk is full: delete files or responses, or make room"
            raise unavailable(message, "storage_unavailable", RETRY_AFTER) from error

    async def read(self, work: Callable[[Connection], Done]) -> Done:
        """Runs work that changes nothing: it waits for no writer, and needs no room."""
        return await self.run(work, "read")

    async def version(self) -> int | None:
        """A number that each change makes another, whichever process commits it; None: the database
        has none, or doesn't answer. A few microseconds, and no transaction."""
        if self._kept is None or self.damaged:
            return None
        loop = asyncio.get_running_loop()
        with contextlib.suppress(sqlite3.Error):
            return await loop.run_in_executor(self._threads, _version_of, self._kept)
        return None

    def insert_new(self, connection: Connection, table: Table, **values: object) -> bool:
        """Inserts a row. False: one with its key is there already, and stays as it is."""
        make = sqlite.insert if self._sqlite else postgresql.insert
        # By what it returns: PostgreSQL's driver counts no inserted rows.
        new = make(table).values(**values).on_conflict_do_nothing().returning(literal(1))
        return connection.execute(new).first() is not None

    def alone_for(self, connection: Connection, owner: str) -> None:
        """Has no other transaction that asks for the same lock work for this owner until this one
        ends: what is counted here is what there is. With SQLite, no other works at all."""
        if not self._sqlite:
            lock = text("SELECT pg_advisory_xact_lock(:space, hashtext(:owner))")
            connection.execute(lock, {"space": _OWNER_LOCK, "owner": owner})

    def after_commit(self, connection: Connection, then: Callable[[], None]) -> None:
        """Does something once the transaction that runs there is done; nothing where it fails."""
        connection.info[AFTERWARDS].append(then)

    def close(self) -> None:
        """Ends the threads; nothing runs any more afterwards."""
        self._threads.shutdown()
        self._kept_open.close()
        self._engine.dispose()

    def transaction(self, work: Callable[[Connection], Done], kind: Kind = "write") -> Done:
        """Runs work as `run` does, for a thread that may wait. Raises DatabaseDamaged, and
        SQLAlchemyError where the database doesn't answer."""
        if self.damaged:
            raise DatabaseDamaged
        with self._noticing_damage():
            try:
                done = self._transact_again(work, kind)
            except OperationalError as error:
                if kind != "free" or self._reserve is None or not _is_full(error):
                    raise
                self._reserve.release()
                done = self._transact(work, kind)
        if kind == "free" and self._reserve is not None:
            self._reserve.hold()
        return done

    @contextlib.contextmanager
    def _noticing_damage(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            if not _is_damaged(error):
                raise
            self.damaged = True
            file = self._url.removeprefix("sqlite:///")
            log.error(
                "the database is damaged: storage is off, and everything else is served; move the "
                "file away, with its -wal and -shm, or restore it from a backup, and start again",
                file=file,
                reason=str(error.orig),
            )
            raise DatabaseDamaged from error

    def _keep_open(self) -> None:
        """The last connection to close takes the journal's files along, and to make them anew
        takes room that a full disk hasn't."""
        with self._noticing_damage():
            kept = self._kept_open.enter_context(self._engine.connect())
            kept.execution_options(reading=True).execute(select(tables.layout.c.version))
            kept.rollback()
            self._kept = kept

    def _transact(self, work: Callable[[Connection], Done], kind: Kind) -> Done:
        with self._engine.connect() as connection:
            connection = connection.execution_options(reading=kind == "read")
            afterwards: list[Callable[[], None]] = []
            connection.info[AFTERWARDS] = afterwards
            with connection.begin():
                done = work(connection)
            for then in afterwards:
                then()
            return done

    def _transact_again(self, work: Callable[[Connection], Done], kind: Kind) -> Done:
        """Where PostgreSQL ended a transaction since it and another waited for each other, it did
        nothing, and is begun anew: some moments later, or it would come before the other again."""
        for _ in range(DEADLOCKS):
            try:
                return self._transact(work, kind)
            except OperationalError as error:
                if getattr(error.orig, "sqlstate", None) != DEADLOCK:
                    raise
            time.sleep(random.uniform(0.05, 0.2))
        return self._transact(work, kind)

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


def _postgres_engine(url: str, connections: int) -> Engine:
    known = {
        "application_name": "penstock",
        "connect_timeout": CONNECT_SECONDS,
        "keepalives_idle": SILENCE_SECONDS,
        "keepalives_interval": PROBE_SECONDS,
        "keepalives_count": PROBES,
        "tcp_user_timeout": 1000 * SILENCE_SECONDS,
    }
    said = make_url(url).query
    try:
        return create_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            # One that broke meanwhile is replaced before it is used. The one that was used last
            # comes first, so that others rest.
            pool_pre_ping=True,
            pool_use_lifo=True,
            connect_args={name: value for name, value in known.items() if name not in said},
        )
    except ModuleNotFoundError as error:
        raise StartupError(
            f"--database-url needs the package {error.name}: pip install 'penstock-llm[postgres]'"
        ) from None


def _sqlite_engine(url: str) -> Engine:
    file = Path(url.removeprefix("sqlite:///"))
    _make_private(file)
    engine = create_engine(
        url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}
    )
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


def _version_of(kept: Connection) -> int:
    """SQLite's number of the state that a connection sees, which its own changes don't count in: on
    this one there are none."""
    driver = kept.connection.dbapi_connection
    return int(driver.execute("PRAGMA data_version").fetchone()[0])  # type: ignore[union-attr]


def _begin_at_once(connection: Connection) -> None:
    """Begins a transaction with the lock for writing: one that gets it later may find that what it
    read has changed, and fails. What only reads sees the database as it was when it began."""
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _is_full(error: SQLAlchemyError) -> bool:
    """Whether SQLite had no room; a file that can't grow is told as an I/O error, too."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _is_damaged(error: DatabaseError) -> bool:
    """Whether SQLite can't make sense of its file."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class _Reserve:
    """A file of zeros beside a database."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-reserve")

    def release(self) -> None:
        self._path.unlink(missing_ok=True)

    def hold(self) -> None:
        """Makes it, unless it is there, or the disk has no room to spare."""
        if self._path.exists():
            return
        try:
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize < 2 * RESERVE:
                return
            part = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            with os.fdopen(part, "wb") as file:
                file.write(bytes(RESERVE))
        except OSError:
            self.release()
