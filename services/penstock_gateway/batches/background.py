"""Answers responses in the background: `"background": true`.

The process sends the requests to itself, as it does with the lines of batches. If it dies, the next
one that looks sends them again. A client that has seen a part of the answer sees the rest of the
same one: a streamed answer has a seed, and is resumed by the id of an event before the first, which
names what computed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
from starlette.types import ASGIApp

from penstock.process import logs
from penstock_gateway.batches.in_process import OwnAnswer, ask
from penstock_gateway.generate.batch import Withdrawal
from penstock_gateway.keys.ring import Caller
from penstock_gateway.responses.items import OutputItem
from penstock_gateway.responses.memory import (
    begun_response,
    ended_response,
    failed_response,
    moved_response,
)
from penstock_gateway.responses.replay import AnswerSoFar
from penstock_gateway.storage.background_records import BackgroundRecords, BackgroundWork
from penstock_gateway.storage.database import DatabaseDamaged
from penstock_gateway.storage.store import new_id

log = logs.get(__name__)

URL = "/v1/responses"
HOLD_EVERY = 1.0
"""Seconds between looks at whether one is cancelled; each holds it for longer."""
SHOW_EVERY = 0.5
"""Seconds between writes of what there is of an answer that is streamed."""
PAUSE, LONGEST_PAUSE = 1.0, 10.0
"""Seconds before one that found no room is asked again: where the answer doesn't say, and at the
most."""


class _Streams(msgspec.Struct):
    stream: bool = False


class BackgroundRunner:
    """app: answers.  caller: returns the caller for an owner and the digest of a key; None: the key
    isn't known any more.  at_once: how many are open."""

    def __init__(
        self,
        records: BackgroundRecords,
        app: ASGIApp,
        caller: Callable[[str, str], Caller | None],
        *,
        at_once: int,
    ) -> None:
        self._records = records
        self._app = app
        self._caller = caller
        self._at_once = at_once
        self._name = new_id("runner")
        self._running: dict[asyncio.Task[None], str] = {}
        self._troubled = False

    async def run(self) -> None:
        """Answers responses until it is cancelled. Then what it holds is anybody's."""
        try:
            await self._records.looks.keep_taking(self._take_one, self._is_full)
        finally:
            tasks = list(self._running)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(DatabaseDamaged):
                await self._records.let_go(self._name)

    def _is_full(self) -> bool:
        return len(self._running) >= self._at_once

    async def _take_one(self) -> bool:
        """False: there is nothing to take, or no answer of the database now."""
        try:
            work = await self._records.claim(self._name, self._running.values())
        except DatabaseDamaged:  # It has been logged.
            return False
        except Exception:
            if not self._troubled:
                log.error("can't look for queued responses; retrying", exception=True)
            self._troubled = True
            return False
        self._troubled = False
        if work is None:
            return False
        task = asyncio.create_task(self._work(work))
        self._running[task] = work.id
        task.add_done_callback(self._running.pop)
        return True

    async def _work(self, work: BackgroundWork) -> None:
        withdrawal = Withdrawal()
        answering = asyncio.create_task(self._answer(work, withdrawal))
        holding = asyncio.create_task(self._hold(work, withdrawal))
        try:
            await asyncio.wait((answering, holding), return_when=asyncio.FIRST_COMPLETED)
            for task in (answering, holding):
                if task.done():
                    task.result()
        except Exception:
            # It stays held for a while, and is then taken up again.
            log.error("response interrupted", response=work.id, exception=True)
        finally:
            for task in (answering, holding):
                task.cancel()
            await asyncio.gather(answering, holding, return_exceptions=True)

    async def _hold(self, work: BackgroundWork, withdrawal: Withdrawal) -> None:
        """Returns when the work was cancelled, or another process holds it."""
        while (held := await self._records.hold(self._name, work)) == "held":
            await asyncio.sleep(HOLD_EVERY)
        withdrawal.asked = held == "gone"

    async def _answer(self, work: BackgroundWork, withdrawal: Withdrawal) -> None:
        caller = self._caller(work.owner, work.key_digest)
        if caller is None:
            gone = failed_response(work.response, 401, b"", "the API key is no longer valid")
            await self._records.end(self._name, work, gone)
            return
        begun = moved_response(work.response, "in_progress")
        if not await self._records.show(self._name, work, begun):
            return
        answer, whole = await self._asked(work, caller, withdrawal)
        if _later(answer):
            # It gives its place up meanwhile: others may be for a model that has room.
            pause = min(LONGEST_PAUSE, answer.retry_after or PAUSE)
            await self._records.postpone(self._name, work, pause)
            return
        if answer.status == 200:
            ended = ended_response(work.response, whole)
        else:
            ended = failed_response(work.response, answer.status, whole)
        await self._records.end(self._name, work, ended)

    async def _asked(
        self, work: BackgroundWork, caller: Caller, withdrawal: Withdrawal
    ) -> tuple[OwnAnswer, bytes]:
        """The answer, and its body. What is streamed is shown as it comes."""
        body = work.body.encode()
        if not msgspec.json.decode(body, type=_Streams).stream:
            answer = await ask(self._app, URL, body, caller)
            return answer, bytes(answer.body)
        partial = AnswerSoFar()
        showing = asyncio.create_task(self._show(work, partial))
        last = f"{work.origin}.0" if work.origin else None
        try:
            answer = await ask(
                self._app,
                URL,
                body,
                caller,
                partial.take,
                last_event_id=last,
                withdrawal=withdrawal,
            )
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        if answer.status == 200 and partial.whole is None:
            raise RuntimeError("a stream that ended without its last event")
        return answer, partial.whole or bytes(answer.body)

    async def _show(self, work: BackgroundWork, partial: AnswerSoFar) -> None:
        """Shows an answer as far as it has come, until it is cancelled."""
        shown: list[OutputItem] = []
        while True:
            await asyncio.sleep(SHOW_EVERY)
            items = partial.items
            if items != shown:
                shown = items
                so_far = begun_response(work.response, items)
                await self._records.show(self._name, work, so_far, partial.origin)


def _later(answer: OwnAnswer) -> bool:
    """Whether it may be answered another time."""
    return answer.status == 503 or (answer.status == 429 and answer.retry_after is not None)
