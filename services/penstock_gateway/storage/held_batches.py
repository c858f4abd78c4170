"""Batches that a process works on, and their answers.

There is one answer per line: the line's number is its key.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
from sqlalchemy import ColumnElement, Connection, case, delete, select, update

from penstock_gateway.storage.batch_records import answer_counts, record_of
from penstock_gateway.storage.database import Database
from penstock_gateway.storage.file_records import added
from penstock_gateway.storage.holds import Holds, held
from penstock_gateway.storage.looks import WorkLooks
from penstock_gateway.storage.records import (
    ENDED,
    BatchError,
    BatchStatus,
    BatchWork,
    FileRecord,
    RequestCounts,
)
from penstock_gateway.storage.tables import answers, batches

OF_OWNER = 8
"""Batches of one owner that a runner holds: they may all do nothing but wait."""
LINES_AT_ONCE = 256
"""Answers that are read from the database in one go."""

_FILE_FIELDS = {"batch_output": "output_file_id", "batch_error": "error_file_id"}


class HeldBatches:
    """The runners' side. runner: a name that no other has."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._holds = Holds(batches, batches.c.status.not_in(ENDED))
        self.looks = WorkLooks(database)
        """When `claim` may find something."""

    async def claim(self, runner: str, busy: Mapping[str, str]) -> BatchWork | None:
        """A batch that nobody holds, for the runner to hold; None: there is none. Of an owner for
        whom the fewest are worked on, the oldest.  busy: batches that the runner works on, and
        whose they are; of one owner no more than OF_OWNER."""

        def work(connection: Connection) -> BatchWork | None:
            others = batches.c.status.not_in(ENDED), batches.c.id.not_in(list(busy))
            ended = self._holds.ended(connection, *others, batches.c.runner != "")
            free = (batches.c.runner == "") | batches.c.id.in_(ended)
            query = select(batches).where(*others, free)
            crowds = Counter(busy.values())
            full = [owner for owner, count in crowds.items() if count >= OF_OWNER]
            if full:
                query = query.where(batches.c.owner.not_in(full))
            if crowds:
                crowd = case(*((batches.c.owner == one, n) for one, n in crowds.items()), else_=0)
                query = query.order_by(crowd)
            query = query.order_by(batches.c.created_at, batches.c.id).limit(1)
            # Where another one looks at the same time, it sees to another batch. (SQLite lets in
            # one of them alone.)
            query = query.with_for_update(skip_locked=True)
            row = connection.execute(query).first()
            if row is None:
                return None
            connection.execute(update(batches).where(batches.c.id == row.id).values(held(runner)))
            return BatchWork(
                record=record_of(connection, row),
                owner=row.owner,
                key_digest=row.key_digest,
                keep_seconds=row.keep_seconds,
            )

        return await self._database.run(work)

    async def hold(self, runner: str, batch_id: str) -> BatchStatus | None:
        """The batch's status, held for some seconds more; None: it is another's now, or has
        ended."""

        def work(connection: Connection) -> BatchStatus | None:
            mine = update(batches).where(*_holds(runner, batch_id)).values(held(runner))
            if not connection.execute(mine).rowcount:
                return None
            query = select(batches.c.status).where(batches.c.id == batch_id)
            status: BatchStatus = connection.execute(query).scalar_one()
            return status

        return await self._database.run(work)

    async def let_go(self, runner: str) -> None:
        """Gives back all batches of a runner that leaves."""

        await self._database.run(partial(self._holds.let_go, runner=runner))

    async def begin(self, runner: str, batch_id: str, total: int) -> bool:
        """Notes that a batch's file is right, and has so many lines. Returns False if the runner
        doesn't hold the batch."""
        return await self._move(runner, batch_id, "in_progress", total=total)

    async def refuse(self, runner: str, batch_id: str, errors: list[BatchError]) -> bool:
        """Notes that a batch's file is wrong. Returns False if the runner doesn't hold the
        batch."""
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
        """Ends a batch whose files are written: their records, its end, and the removal of its
        answers are one transaction. files: of the output, and of the errors: those that there are.
        Returns False if the runner doesn't hold the batch, and nothing was done."""
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

    async def answered(self, batch_id: str) -> set[int]:
        """Numbers of the lines that have an answer."""

        def work(connection: Connection) -> set[int]:
            query = select(answers.c.number).where(answers.c.batch_id == batch_id)
            return {int(row.number) for row in connection.execute(query)}

        return await self._database.read(work)

    async def counts(self, batch_id: str) -> RequestCounts:
        """What the answers say."""

        def work(connection: Connection) -> RequestCounts:
            total = connection.scalar(select(batches.c.total).where(batches.c.id == batch_id))
            return answer_counts(connection, batch_id, total or 0)

        return await self._database.read(work)

    async def answer(self, runner: str, batch_id: str, number: int, line: str, *, ok: bool) -> bool:
        """Keeps a line's answer, unless it has one. False: the runner doesn't hold the batch."""

        def work(connection: Connection) -> bool:
            mine = select(batches.c.id).where(*_holds(runner, batch_id))
            # Until this is done, nobody ends the batch.
            if connection.execute(mine.with_for_update(read=True)).first() is None:
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
    """Some lines after the line `last`, each with its number."""
    query = (
        select(answers.c.number, answers.c.line)
        .where(answers.c.batch_id == batch_id, answers.c.ok == ok, answers.c.number > last)
        .order_by(answers.c.number)
        .limit(LINES_AT_ONCE)
    )
    return [(int(row.number), str(row.line)) for row in connection.execute(query)]


def _holds(runner: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
    """Conditions for a batch that the runner still holds and that hasn't ended."""
    mine = batches.c.id == batch_id, batches.c.runner == runner
    return *mine, batches.c.status.not_in(ENDED)
