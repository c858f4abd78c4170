"""Batches as the database shows them to clients. `held_batches` has who works on them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from penstock_gateway.storage.database import Database
from penstock_gateway.storage.records import (
    ENDED,
    MESSAGES,
    BatchError,
    BatchErrors,
    BatchRecord,
    BatchWork,
    RequestCounts,
)
from penstock_gateway.storage.tables import answers, batches, files

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
    """The batches of everybody: who asks for a client says whose it means.  of_messages: those of
    Anthropic's API, which are apart from OpenAI's."""

    def __init__(self, database: Database, *, of_messages: bool = False) -> None:
        self._database = database
        is_message = batches.c.endpoint == MESSAGES
        self._shown = is_message if of_messages else ~is_message

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
                    total=record.request_counts.total,
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
        """The owner's batch of this id; None if there is none."""

        def work(connection: Connection) -> BatchRecord | None:
            return self._found(connection, owner, batch_id)

        return await self._database.read(work)

    async def page(
        self, owner: str, *, limit: int, after: str | None = None, before: str | None = None
    ) -> list[BatchRecord] | None:
        """Batches listed after `after`, the latest first; or before `before`, the nearest first.
        One more than `limit` where there are more. None: there is no such batch."""

        def work(connection: Connection) -> list[BatchRecord] | None:
            query = select(batches).where(batches.c.owner == owner, self._shown)
            order = batches.c.created_at.desc(), batches.c.id.desc()
            if after is not None or before is not None:
                named = (after if before is None else before) or ""
                at = select(batches.c.created_at, batches.c.id).where(*self._one(owner, named))
                row = connection.execute(at).first()
                if row is None:
                    return None
                place = tuple_(batches.c.created_at, batches.c.id)
                query = query.where(place < tuple(row) if before is None else place > tuple(row))
            if before is not None:
                order = batches.c.created_at.asc(), batches.c.id.asc()
            rows = connection.execute(query.order_by(*order).limit(limit + 1)).all()
            return [record_of(connection, row) for row in rows]

        return await self._database.read(work)

    async def cancel(self, owner: str, batch_id: str) -> BatchRecord | None:
        """The batch, which ends as soon as its runner sees it, unless it is ending or has ended."""

        def work(connection: Connection) -> BatchRecord | None:
            connection.execute(
                update(batches)
                .where(
                    *self._one(owner, batch_id),
                    batches.c.status.in_(("validating", "in_progress")),
                )
                .values(status="cancelling", cancelling_at=int(time.time()))
            )
            return self._found(connection, owner, batch_id)

        return await self._database.run(work, "free")

    async def remove(self, owner: str, batch_id: str) -> list[str] | None:
        """Removes a batch that has ended, with the records of its files, whose ids it returns.
        None: there is none that has ended."""

        def work(connection: Connection) -> list[str] | None:
            record = self._found(connection, owner, batch_id)
            if record is None or record.status not in ENDED:
                return None
            connection.execute(delete(batches).where(batches.c.id == batch_id))
            named = record.input_file_id, record.output_file_id, record.error_file_id
            ids = [each for each in named if each is not None]
            gone = delete(files).where(files.c.id.in_(ids), files.c.owner == owner)
            connection.execute(gone)
            return ids

        return await self._database.run(work, "free")

    async def uses(self, file_id: str) -> bool:
        """Whether a batch that hasn't ended reads the file."""

        def work(connection: Connection) -> bool:
            query = select(func.count()).where(
                batches.c.input_file_id == file_id, batches.c.status.not_in(ENDED)
            )
            return bool(connection.scalar(query))

        return await self._database.read(work)

    def _one(self, owner: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
        return batches.c.id == batch_id, batches.c.owner == owner, self._shown

    def _found(self, connection: Connection, owner: str, batch_id: str) -> BatchRecord | None:
        row = connection.execute(select(batches).where(*self._one(owner, batch_id))).first()
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
    """How many requests a batch has, answered and failed; of one that hasn't ended, as the answers
    say."""
    if row.status in ENDED:
        return RequestCounts(row.total, row.completed, row.failed)
    return answer_counts(connection, row.id, row.total)


def answer_counts(connection: Connection, batch_id: str, total: int) -> RequestCounts:
    """What the answers say of a batch that hasn't ended."""
    query = select(answers.c.ok, func.count()).where(answers.c.batch_id == batch_id)
    found = {bool(ok): int(count) for ok, count in connection.execute(query.group_by(answers.c.ok))}
    return RequestCounts(total, found.get(True, 0), found.get(False, 0))
