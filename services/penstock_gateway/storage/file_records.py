"""Files as the database has them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, func, select, tuple_

from penstock_gateway.storage.database import Database
from penstock_gateway.storage.records import ENDED, FileRecord, Order
from penstock_gateway.storage.tables import batches, files

EXPIRED_AT_ONCE = 1000
"""Files whose time is over, that one look removes."""


class FileRecords:
    """Whoever asks sees the files of one owner only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, owner: str, file_id: str) -> FileRecord | None:
        """The owner's file of this id; None if there is none, or if it has expired."""

        def work(connection: Connection) -> FileRecord | None:
            return found(connection, owner, file_id)

        return await self._database.read(work)

    async def page(
        self,
        owner: str,
        *,
        limit: int,
        order: Order = "desc",
        after: str | None = None,
        purpose: str | None = None,
    ) -> list[FileRecord] | None:
        """Files by age, from the one after the file `after`; one more than `limit` where there are
        more. None: there is no such file."""

        def work(connection: Connection) -> list[FileRecord] | None:
            query = select(files).where(*_lives(owner))
            if purpose is not None:
                query = query.where(files.c.purpose == purpose)
            if after is not None:
                at = select(files.c.created_at, files.c.id).where(files.c.id == after)
                row = connection.execute(at.where(files.c.owner == owner)).first()
                if row is None:
                    return None
                place = tuple_(files.c.created_at, files.c.id)
                query = query.where(place > tuple(row) if order == "asc" else place < tuple(row))
            columns = [files.c.created_at, files.c.id]
            ordered = columns if order == "asc" else [column.desc() for column in columns]
            rows = connection.execute(query.order_by(*ordered).limit(limit + 1))
            return [_record(row) for row in rows]

        return await self._database.read(work)

    async def totals(self, owner: str) -> tuple[int, int]:
        """How many files the owner has, and their bytes."""

        return await self._database.read(lambda connection: _totals(connection, owner))

    async def add(
        self, owner: str, record: FileRecord, *, most_files: int, most_bytes: int
    ) -> bool:
        """The contents are there already. False: others of the owner's have come meanwhile, and it
        would have more than it may."""

        def work(connection: Connection) -> bool:
            self._database.alone_for(connection, owner)
            count, size = _totals(connection, owner)
            if count >= most_files or size + record.bytes > most_bytes:
                return False
            added(self._database, connection, owner, record)
            return True

        return await self._database.run(work)

    async def remove(self, owner: str, file_id: str) -> bool:
        """False: there was none."""

        def work(connection: Connection) -> bool:
            gone = delete(files).where(files.c.id == file_id, files.c.owner == owner)
            return connection.execute(gone).rowcount > 0

        return await self._database.run(work, "free")

    async def expired(self) -> list[str]:
        """Ids of files whose time is over; their records are gone now."""

        def work(connection: Connection) -> list[str]:
            needed = select(batches.c.input_file_id).where(batches.c.status.not_in(ENDED))
            query = select(files.c.id).where(
                files.c.expires_at <= int(time.time()), files.c.id.not_in(needed)
            )
            ids = [str(row.id) for row in connection.execute(query.limit(EXPIRED_AT_ONCE))]
            connection.execute(delete(files).where(files.c.id.in_(ids)))
            return ids

        return await self._database.run(work, "free")

    async def ids(self) -> list[str]:
        """Ids of every file of everybody."""

        return await self._database.read(all_ids)


def all_ids(connection: Connection) -> list[str]:
    """Ids of every file of everybody, within the caller's transaction."""
    return [str(row.id) for row in connection.execute(select(files.c.id))]


def _totals(connection: Connection, owner: str) -> tuple[int, int]:
    query = select(func.count(), func.coalesce(func.sum(files.c.bytes), 0))
    count, size = connection.execute(query.where(files.c.owner == owner)).one()
    return int(count), int(size)


def found(connection: Connection, owner: str, file_id: str) -> FileRecord | None:
    """The owner's file, within the caller's transaction; None: it has none of that id that hasn't
    expired."""
    row = connection.execute(select(files).where(files.c.id == file_id, *_lives(owner))).first()
    return None if row is None else _record(row)


def added(database: Database, connection: Connection, owner: str, record: FileRecord) -> None:
    """Adds it, unless it is there already."""
    known = msgspec.structs.asdict(record)
    del known["status"]
    database.insert_new(connection, files, owner=owner, **known)


def _lives(owner: str) -> tuple[ColumnElement[bool], ...]:
    now = int(time.time())
    return files.c.owner == owner, (files.c.expires_at.is_(None)) | (files.c.expires_at > now)


def _record(row: Row[Any]) -> FileRecord:
    return FileRecord(
        id=row.id,
        bytes=row.bytes,
        created_at=row.created_at,
        filename=row.filename,
        purpose=row.purpose,
        expires_at=row.expires_at,
    )
