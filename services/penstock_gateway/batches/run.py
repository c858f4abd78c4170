"""One batch on its way: checked, answered line by line, and written out.

An answer is in the database, under its line's number, before the next line takes its place. So a
process that dies loses only the lines that it was working on; these are sent again, and no line has
two answers. A line that is sent again gets the same answer if the request is greedy or has a seed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import chain, islice

from starlette.types import ASGIApp

from penstock.process import logs
from penstock_gateway.batches.in_process import OwnAnswer, ask, error_line, result_line
from penstock_gateway.batches.request import BatchFile, NumberedLine
from penstock_gateway.generate.reply import one_line
from penstock_gateway.keys.ring import Caller
from penstock_gateway.receipts import Receipts
from penstock_gateway.service import LineCounts
from penstock_gateway.storage.records import (
    MESSAGES,
    BatchError,
    BatchStatus,
    BatchWork,
    FileRecord,
)
from penstock_gateway.storage.store import Store, new_id

log = logs.get(__name__)

LOOK_EVERY = 1.0
"""Seconds between looks at whether the batch is cancelled; each holds it for longer."""
LONGEST_PAUSE = 10.0
"""Seconds before a line that found no room is asked again."""
READ_AT_ONCE, READ_BYTES = 32, 1 << 20
"""Lines that are read in one go, and after how many bytes it ends."""
RETRIED = (429, 503)
"""What says: later."""


class Lost(Exception):
    """Another runner holds the batch now."""


class FileGone(Exception):
    """The batch's file can't be read."""


class BatchRun:
    """One batch that this process holds.

    app: answers the lines.  caller: whose requests they are; None: the key that made the batch
    isn't known any more.  room: of all batches here together, for lines that are open.  at_once:
    lines of this one that are open or wait for it.  counts: of the lines, of this process.
    receipts: signs those among the answers; None: there are none.
    """

    def __init__(
        self,
        work: BatchWork,
        store: Store,
        runner: str,
        *,
        app: ASGIApp,
        caller: Callable[[], Caller | None],
        room: asyncio.Semaphore,
        at_once: int,
        longest_line: int,
        counts: LineCounts,
        receipts: Receipts | None = None,
    ) -> None:
        self._work = work
        self._record = work.record
        self._store = store
        self._held_batches = store.held
        self._runner = runner
        self._app = app
        self._caller = caller
        self._room = room
        self._counts = counts
        self._receipts = receipts
        self._open = self._pausing = 0
        """Lines that are under way, and those of them that wait to be asked again."""
        self._own_room = asyncio.Semaphore(at_once)
        self._file = BatchFile(
            lambda: store.contents.open(work.record.input_file_id),
            work.record.endpoint,
            most_lines=store.settings.max_batch_lines,
            longest=longest_line,
        )

    @property
    def work(self) -> BatchWork:
        return self._work

    @property
    def stalled(self) -> bool:
        """Whether it does nothing but wait: its key may ask nothing now, or its model isn't
        there."""
        return self._open > 0 and self._pausing == self._open

    async def run(self) -> None:
        """Runs until the batch has ended. Raises Lost, in a group or alone, where another has
        it."""
        working = asyncio.create_task(self._through())
        holding = asyncio.create_task(self._hold())
        try:
            await asyncio.wait((working, holding), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return
            ended = holding.result()
        finally:
            for task in (working, holding):
                task.cancel()
            await asyncio.gather(working, holding, return_exceptions=True)
        await self._write_out(ended)

    async def _hold(self) -> BatchStatus:
        """How the batch ends before all of its lines are answered."""
        while True:
            status = await self._held_batches.hold(self._runner, self._record.id)
            if status is None:
                raise Lost
            if status == "cancelling":
                return "cancelled"
            # Its file is read first: nothing can be said about the lines of a wrong one.
            over = status == "in_progress" and time.time() >= self._record.expires_at
            if over:
                return "expired"
            await asyncio.sleep(LOOK_EVERY)

    async def _through(self) -> None:
        name, status = self._record.id, self._record.status
        if status == "cancelling":
            await asyncio.get_running_loop().create_future()  # `_hold` sees it
        if status == "validating":
            count, errors = await asyncio.to_thread(self._checked)
            if errors:
                await self._refuse(errors)
                return
            await self._moved(self._held_batches.begin(self._runner, name, count))
        if status != "finalizing":
            if not await self._answer_all(await self._held_batches.answered(name)):
                await self._refuse([_GONE])
                return
            await self._moved(self._held_batches.finalize(self._runner, name))
        await self._write_out("completed")

    async def _refuse(self, errors: list[BatchError]) -> None:
        log.info("batch refused", batch=self._record.id, errors=len(errors))
        await self._moved(self._held_batches.refuse(self._runner, self._record.id, errors))

    async def _moved(self, moving: Awaitable[bool]) -> None:
        """The batch's next status; what isn't held any more has none. Where it is being cancelled,
        `_hold` sees that and ends this."""
        if await moving:
            return
        _held(await self._held_batches.hold(self._runner, self._record.id) == "cancelling")
        await asyncio.get_running_loop().create_future()

    def _checked(self) -> tuple[int, list[BatchError]]:
        try:
            return self._file.check()
        except FileNotFoundError:
            return 0, [_GONE]

    async def _answer_all(self, answered: set[int]) -> bool:
        """False: the file is gone."""
        lines = self._file.lines(answered)
        try:
            async with asyncio.TaskGroup() as group:
                while read := await asyncio.to_thread(_some, lines):
                    for line in read:
                        await self._own_room.acquire()
                        answering = group.create_task(self._answer(line))
                        answering.add_done_callback(lambda _: self._own_room.release())
        except* FileGone:
            gone = True
        else:
            gone = False
        return not gone

    async def _answer(self, numbered: NumberedLine) -> None:
        caller = self._caller()
        if caller is None:
            message = "the API key that created the batch is no longer valid"
            result = error_line(numbered.custom_id, "invalid_api_key", message)
            await self._keep(numbered.number, result, ok=False)
            return
        self._open += 1
        try:
            answer = await self._asked(numbered.body, caller)
        finally:
            self._open -= 1
        result = result_line(numbered.custom_id, answer)
        await self._keep(numbered.number, result, ok=answer.status == 200)

    async def _asked(self, body: bytes, caller: Caller) -> OwnAnswer:
        pause = 0.1
        while True:
            # While it pauses, others have its room, so a rate-limited batch holds up no other.
            async with self._room:
                answer = await self._ask(body, caller)
            if answer.status not in RETRIED or not _passes(answer):
                return answer
            self._counts.refused += 1
            self._pausing += 1
            try:
                await asyncio.sleep(min(LONGEST_PAUSE, answer.retry_after or pause))
            finally:
                self._pausing -= 1
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _ask(self, body: bytes, caller: Caller) -> OwnAnswer:
        self._counts.open += 1
        try:
            return await ask(self._app, self._record.endpoint, body, caller)
        finally:
            self._counts.open -= 1

    async def _keep(self, number: int, line: str, *, ok: bool) -> None:
        """Records the answer.  A thread does, which a cancelled batch can't stop: the batch's files
        are written once it has, or they and the counts would differ."""
        recording = asyncio.ensure_future(self._record_answer(number, line, ok=ok))
        try:
            await asyncio.shield(recording)
        except asyncio.CancelledError:
            await asyncio.gather(recording, return_exceptions=True)
            raise

    async def _record_answer(self, number: int, line: str, *, ok: bool) -> None:
        _held(await self._held_batches.answer(self._runner, self._record.id, number, line, ok=ok))
        self._counts.completed += ok
        self._counts.failed += not ok

    async def _write_out(self, status: BatchStatus) -> None:
        """The files, and the end."""
        # What Anthropic's API tells of those without an answer, it reads from the batch's own file.
        if status == "expired" and self._record.endpoint != MESSAGES:
            await self._expire()
        files: list[FileRecord] = []
        ended = False
        try:
            for ok, purpose in ((True, "batch_output"), (False, "batch_error")):
                file = await asyncio.to_thread(self._write_file, ok, purpose)
                if file is not None:
                    files.append(file)
            counts = await self._held_batches.counts(self._record.id)
            ended = await self._held_batches.end(self._runner, self._work, status, counts, files)
            _held(ended)
        finally:
            if not ended:
                for file in files:
                    await asyncio.to_thread(self._store.contents.remove, file.id)
        log.info(
            f"batch {status}",
            batch=self._record.id,
            completed=counts.completed,
            failed=counts.failed,
        )

    def _write_file(self, ok: bool, purpose: str) -> FileRecord | None:
        """Under an id of its own each time: who writes it, too, writes another one."""
        id, receipts = self._record.id, self._receipts
        lines = self._held_batches.lines(id, ok=ok)
        if ok and receipts is not None:
            lines = receipts.signed(id, lambda: self._held_batches.lines(id, ok=True))
        first = next(lines, None)
        if first is None:
            return None
        file_id = new_id("file")
        size = self._store.contents.write(file_id, map(one_line, chain((first,), lines)))
        now = int(time.time())
        return FileRecord(
            id=file_id,
            bytes=size,
            created_at=now,
            filename=f"{self._record.id}_{'output' if ok else 'error'}.jsonl",
            purpose=purpose,
            expires_at=now + self._work.keep_seconds,
        )

    async def _expire(self) -> None:
        """Lines that were never answered are reported as errors."""
        answered = await self._held_batches.answered(self._record.id)
        message = "the batch's completion window ended before this line was answered"
        lines = self._file.lines(answered)
        with suppress(FileGone):
            while read := await asyncio.to_thread(_some, lines):
                for line in read:
                    written = error_line(line.custom_id, "batch_expired", message)
                    await self._keep(line.number, written, ok=False)


def _held(held: bool) -> None:
    if not held:
        raise Lost


_GONE = BatchError(code="file_not_found", message="the batch's input file no longer exists")


def _some(lines: Iterator[NumberedLine]) -> list[NumberedLine]:
    found: list[NumberedLine] = []
    size = 0
    try:
        for line in islice(lines, READ_AT_ONCE):
            found.append(line)
            size += len(line.body)
            if size >= READ_BYTES:
                break
    except FileNotFoundError as error:
        raise FileGone(error.strerror) from error
    return found


def _passes(answer: OwnAnswer) -> bool:
    """Whether another time is another matter: a request that a tenant's limits never let in isn't
    helped by waiting."""
    return answer.status == 503 or answer.retry_after is not None
