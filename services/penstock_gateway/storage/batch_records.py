"""Batches and their answers as the database has them.

A process works on a batch as long as it holds it: for HOLD_SECONDS, and for as many from each time
that it says so again. One that dies leaves its batches to whoever looks next. One that was frozen,
and wakes, finds that it holds nothing any more: whatever changes a batch asks for that in the same
transaction. And an answer stands there once: its line's number is its key.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    case,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from penstock_gateway.storage.database import Database
from penstock_gateway.storage.file_records import added
from penstock_gateway.storage.records import (
    ENDED,
    BatchError,
    BatchErrors,
    BatchRecord,
    BatchStatus,
    BatchWork,
    FileRecord,
    RequestCounts,
)
from penstock_gateway.storage.tables import answers, batches

HOLD_SECONDS = 15.0
LINES_AT_ONCE = 256
"""Answers that are read from the database in one go."""

_FILE_FIELDS = {"batch_output": "output_file_id", "batch_error": "error_file_id"}
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
    """The batches of everybody: what asks for a client says whose it means."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- for clients

    async def add(self, work: BatchWork, most_open: int) -> bool:
        """False: the owner has as many batches that haven't ended as it may."""

        def adding(connection: Connection) -> bool:
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

        return await self._database.run(work)

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
            return [_record(connection, row) for row in rows]

        return await self._database.run(work)

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

        return await self._database.run(work)

    async def uses(self, file_id: str) -> bool:
        """Whether a batch that hasn't ended reads the file."""

        def work(connection: Connection) -> bool:
            query = select(func.count()).where(
                batches.c.input_file_id == file_id, batches.c.status.not_in(ENDED)
            )
            return bool(connection.scalar(query))

        return await self._database.run(work)

    # ---- for runners

    async def claim(self, runner: str, busy: Mapping[str, str]) -> BatchWork | None:
        """A batch that nobody holds, for the runner to hold; None: there is none. Of an owner for
        whom the fewest are worked on, the oldest.  busy: batches that the runner works on, and
        whose they are."""

        def work(connection: Connection) -> BatchWork | None:
            query = select(batches).where(
                batches.c.status.not_in(ENDED),
                batches.c.held_until < time.time(),
                batches.c.id.not_in(list(busy)),
            )
            crowds = Counter(busy.values())
            if crowds:
                crowd = case(*((batches.c.owner == one, n) for one, n in crowds.items()), else_=0)
                query = query.order_by(crowd)
            query = query.order_by(batches.c.created_at, batches.c.id).limit(1)
            row = connection.execute(query).first()
            if row is None:
                return None
            connection.execute(update(batches).where(batches.c.id == row.id).values(_held(runner)))
            return BatchWork(
                record=_record(connection, row),
                owner=row.owner,
                key_digest=row.key_digest,
                keep_seconds=row.keep_seconds,
            )

        return await self._database.run(work)

    async def hold(self, runner: str, batch_id: str) -> BatchStatus | None:
        """The batch's status, held for some seconds more; None: it is another's now, or has
        ended."""

        def work(connection: Connection) -> BatchStatus | None:
            held = update(batches).where(*_holds(runner, batch_id)).values(_held(runner))
            if not connection.execute(held).rowcount:
                return None
            query = select(batches.c.status).where(batches.c.id == batch_id)
            status: BatchStatus = connection.execute(query).scalar_one()
            return status

        return await self._database.run(work)

    async def let_go(self, runner: str) -> None:
        """All that the runner holds: it leaves."""

        def work(connection: Connection) -> None:
            mine = update(batches).where(batches.c.runner == runner)
            connection.execute(mine.values(runner="", held_until=0.0))

        await self._database.run(work)

    async def begin(self, runner: str, batch_id: str, total: int) -> bool:
        """Its file is right, and has so many lines. False: the runner doesn't hold it."""
        return await self._move(runner, batch_id, "in_progress", total=total)

    async def refuse(self, runner: str, batch_id: str, errors: list[BatchError]) -> bool:
        """Its file is wrong. False: the runner doesn't hold it."""
        told = msgspec.json.encode(errors).decode()
        return await self._move(runner, batch_id, "failed", errors=told)

    async def finalize(self, runner: str, batch_id: str) -> bool:
        """All of its lines are answered. False: the runner doesn't hold it."""
        return await self._move(runner, batch_id, "finalizing")

    async def end(
        self,
        runner: str,
        work: BatchWork,
        status: BatchStatus,
        counts: RequestCounts,
        files: list[FileRecord],
    ) -> bool:
        """Its files are written: their records, its end, and the removal of its answers are one
        transaction.  files: of the output, and of the errors: those that there are.  False: the
        runner doesn't hold it, and nothing was done."""
        batch_id = work.record.id

        def ending(connection: Connection) -> bool:
            ids = {_FILE_FIELDS[file.purpose]: file.id for file in files}
            ended = update(batches).where(*_holds(runner, batch_id))
            values = {
                "status": status,
                "completed": counts.completed,
                "failed": counts.failed,
                f"{status}_at": int(time.time()),
                **ids,
            }
            if not connection.execute(ended.values(values)).rowcount:
                return False
            for file in files:
                added(self._database, connection, work.owner, file)
            connection.execute(delete(answers).where(answers.c.batch_id == batch_id))
            return True

        return await self._database.run(ending)

    async def _move(self, runner: str, batch_id: str, status: str, **values: object) -> bool:
        def work(connection: Connection) -> bool:
            moved = update(batches).where(
                *_holds(runner, batch_id), batches.c.status != "cancelling"
            )
            new = {"status": status, f"{status}_at": int(time.time()), **values}
            return connection.execute(moved.values(new)).rowcount > 0

        return await self._database.run(work)

    # ---- answers

    async def answered(self, batch_id: str) -> set[int]:
        """Numbers of the lines that have an answer."""

        def work(connection: Connection) -> set[int]:
            query = select(answers.c.number).where(answers.c.batch_id == batch_id)
            return {int(row.number) for row in connection.execute(query)}

        return await self._database.run(work)

    async def answer(self, runner: str, batch_id: str, number: int, line: str, *, ok: bool) -> bool:
        """Keeps a line's answer, unless it has one. False: the runner doesn't hold the batch."""

        def work(connection: Connection) -> bool:
            held = select(batches.c.id).where(*_holds(runner, batch_id))
            if connection.execute(held).first() is None:
                return False
            self._database.insert_new(
                connection, answers, batch_id=batch_id, number=number, ok=ok, line=line
            )
            return True

        return await self._database.run(work)

    def lines(self, batch_id: str, *, ok: bool) -> Iterator[bytes]:
        """The answers, or the errors, in the order of the batch's lines. For a thread that may
        wait."""
        last = -1
        while rows := self._database.transaction(partial(_some_lines, batch_id, ok, last)):
            for _, line in rows:
                yield f"{line}\n".encode()
            last = rows[-1][0]


def _some_lines(
    batch_id: str, ok: bool, last: int, connection: Connection
) -> list[tuple[int, str]]:
    """Those behind the line `last`."""
    query = (
        select(answers.c.number, answers.c.line)
        .where(answers.c.batch_id == batch_id, answers.c.ok == ok, answers.c.number > last)
        .order_by(answers.c.number)
        .limit(LINES_AT_ONCE)
    )
    return [(int(row.number), str(row.line)) for row in connection.execute(query)]


def _holds(runner: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
    """Nobody else has taken it up since, and it hasn't ended."""
    mine = batches.c.id == batch_id, batches.c.runner == runner
    return *mine, batches.c.status.not_in(ENDED)


def _held(runner: str) -> dict[str, object]:
    return {"runner": runner, "held_until": time.time() + HOLD_SECONDS}


def _found(connection: Connection, owner: str, batch_id: str) -> BatchRecord | None:
    mine = select(batches).where(batches.c.id == batch_id, batches.c.owner == owner)
    row = connection.execute(mine).first()
    return None if row is None else _record(connection, row)


def _record(connection: Connection, row: Row[Any]) -> BatchRecord:
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
