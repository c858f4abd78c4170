"""Batches as the database shows them to clients. `held_batches` has who works on them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, tuple_, update

from penstock_gateway.storage.database import Database
from penstock_gateway.storage.records import (
    ENDED,
    BatchError,
    BatchErrors,
    BatchRecord,
    BatchWork,
    RequestCounts,
)
from penstock_gateway.storage.tables import answers, batches

_TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


class BatchRecords:
    """The batches of everybody: who asks for a client says whose it means."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, work: BatchWork, most_open: int) -> bool:
        """False: the owner has as many batches that haven't ended as it may."""

        def adding(connection: Connection) -> bool:
            self._database.alone_for(connection, work.owner)
            record = work.record
            still = select(func.count()).where(
                batches.c.owner == work.owner, batches.c.status.not_in(ENDED)
            )
            if (connection.scalar(still) or 0) >= most_open:
                return False
            connection.execute(
                insert(batches).values(
                    id=record.id,
                    owner=work.owner,
                    key_digest=work.key_digest,
                    endpoint=record.endpoint,
                    input_file_id=record.input_file_id,
                    completion_window=record.completion_window,
                    metadata=msgspec.json.encode(record.metadata).decode(),
                    status=record.status,
                    errors="[]",
                    keep_seconds=work.keep_seconds,
                    total=0,
                    completed=0,
                    failed=0,
                    created_at=record.created_at,
                    expires_at=record.expires_at,
                    runner="",
                    held_until=0.0,
                )
            )
            return True

        return await self._database.run(adding)

    async def find(self, owner: str, batch_id: str) -> BatchRecord | None:
        """None: the owner has none of that id."""

        def work(connection: Connection) -> BatchRecord | None:
            return _found(connection, owner, batch_id)

        return await self._database.read(work)

    async def page(self, owner: str, *, limit: int, after: str | None) -> list[BatchRecord]:
        """The latest first, from behind the batch `after`; one more than `limit` where there are
        more."""

        def work(connection: Connection) -> list[BatchRecord]:
            query = select(batches).where(batches.c.owner == owner)
            if after is not None:
                at = select(batches.c.created_at, batches.c.id).where(
                    batches.c.id == after, batches.c.owner == owner
                )
                row = connection.execute(at).first()
                if row is None:
                    return []
                query = query.where(tuple_(batches.c.created_at, batches.c.id) < tuple(row))
            query = query.order_by(batches.c.created_at.desc(), batches.c.id.desc())
            rows = connection.execute(query.limit(limit + 1)).all()
            return [record_of(connection, row) for row in rows]

        return await self._database.read(work)

    async def cancel(self, owner: str, batch_id: str) -> BatchRecord | None:
        """The batch, which ends as soon as its runner sees it, unless it is ending or has ended."""

        def work(connection: Connection) -> BatchRecord | None:
            connection.execute(
                update(batches)
                .where(
                    batches.c.id == batch_id,
                    batches.c.owner == owner,
                    batches.c.status.in_(("validating", "in_progress")),
                )
                .values(status="cancelling", cancelling_at=int(time.time()))
            )
            return _found(connection, owner, batch_id)

        return await self._database.run(work, "free")

    async def uses(self, file_id: str) -> bool:
        """Whether a batch that hasn't ended reads the file."""

        def work(connection: Connection) -> bool:
            query = select(func.count()).where(
                batches.c.input_file_id == file_id, batches.c.status.not_in(ENDED)
            )
            return bool(connection.scalar(query))

        return await self._database.read(work)


def _found(connection: Connection, owner: str, batch_id: str) -> BatchRecord | None:
    mine = select(batches).where(batches.c.id == batch_id, batches.c.owner == owner)
    row = connection.execute(mine).first()
    return None if row is None else record_of(connection, row)


def record_of(connection: Connection, row: Row[Any]) -> BatchRecord:
    errors = msgspec.json.decode(row.errors, type=list[BatchError])
    return BatchRecord(
        id=row.id,
        endpoint=row.endpoint,
        input_file_id=row.input_file_id,
        completion_window=row.completion_window,
        status=row.status,
        created_at=row.created_at,
        expires_at=row.expires_at,
        errors=BatchErrors(errors) if errors else None,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        request_counts=_counts(connection, row),
        metadata=msgspec.json.decode(row.metadata, type=dict[str, str] | None),
        **{name: getattr(row, name) for name in _TIMES},
    )


def _counts(connection: Connection, row: Row[Any]) -> RequestCounts:
    """Of one that hasn't ended, what the answers say."""
    if row.status in ENDED:
        return RequestCounts(row.total, row.completed, row.failed)
    query = select(answers.c.ok, func.count()).where(answers.c.batch_id == row.id)
    found = {bool(ok): int(count) for ok, count in connection.execute(query.group_by(answers.c.ok))}
    return RequestCounts(row.total, found.get(True, 0), found.get(False, 0))
