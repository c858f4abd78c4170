"""How fast requests are submitted, and what becomes of those that are never answered."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import SamplingParams
from penstock.client import EngineClient, Generation
from penstock.client.session_state import (
    MAX_TURN,
    MAX_UNANSWERED,
    TRIES_ALONE,
    TRIES_IN_COMPANY,
    Pacing,
)
from penstock.errors import RequestFailed
from penstock.protocol.to_frontend import Accepted
from penstock.request.terms import Terms
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

SHORT = SamplingParams(max_tokens=9, seed=1)


class Sender:
    """A session that sends whatever it is told to; `sent` are names."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.open = True
        self.pacing = Pacing(self._submit)

    def _submit(self, request: Any) -> bool:
        if self.open:
            self.sent.append(request.key)
        return self.open

    def enter(self, number: int, tokens: int = 1, *, new: bool = False, tries: int = 0) -> Any:
        request = SimpleNamespace(
            key=number, carried_tokens=tokens, placement=SimpleNamespace(tries=tries), terms=Terms()
        )
        self.pacing.enter(request, new=new)
        return request

    async def settled(self) -> list[int]:
        """What has been sent when no more goes by itself."""
        before = None
        while before != self.sent:
            before = list(self.sent)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return before


async def test_no_turn_of_the_event_loop_encodes_much() -> None:
    """A Submit of 130,000 tokens takes milliseconds."""
    sender = Sender()
    for number in range(4):
        sender.enter(number, 130_000)
    assert sender.sent == [0]
    await asyncio.sleep(0)
    assert sender.sent == [0, 1]
    assert await sender.settled() == [0, 1, 2, 3]
    many = Sender()
    for number in range(200):
        many.enter(number)
    assert len(many.sent) == MAX_TURN
    assert await many.settled() == list(range(200))


async def test_the_window_counts_requests_and_tokens() -> None:
    sender = Sender()
    for number in range(1000):
        sender.enter(number)
    assert await sender.settled() == list(range(MAX_UNANSWERED))
    for number in (7, 3, 7, 5000):
        sender.pacing.answered(number)
    assert await sender.settled() == list(range(MAX_UNANSWERED + 2))
    long = Sender()
    for number in range(10):
        long.enter(number, 400_000)
    assert await long.settled() == [0, 1]
    long.pacing.answered(0)
    assert await long.settled() == [0, 1, 2]
    # One may always go, whatever it has.
    huge = Sender()
    huge.enter(0, 9_000_000)
    huge.enter(1, 9_000_000)
    assert await huge.settled() == [0]
    huge.pacing.answered(0)
    assert await huge.settled() == [0, 1]


async def test_what_is_new_goes_in_turns_with_what_comes_back() -> None:
    sender = Sender()
    for number in range(1000):
        sender.enter(number)
    await sender.settled()
    for number in range(1000, 1010):
        sender.enter(number, new=True)
    for number in range(20):
        sender.pacing.answered(number)
    sent = await sender.settled()
    assert [number for number in sent if number >= 1000] == list(range(1000, 1010))
    assert [number for number in sent if number < 1000] == list(range(MAX_UNANSWERED + 10))


async def test_what_leaves_the_line_is_never_sent() -> None:
    sender = Sender()
    for number in range(MAX_UNANSWERED + 5):
        sender.enter(number)
    await sender.settled()
    waiting = MAX_UNANSWERED + 2
    assert sender.pacing.waits(waiting)
    assert not sender.pacing.waits(0)
    sender.pacing.forget(waiting)
    # What was sent keeps its place until the engine core has dealt with it.
    sender.pacing.forget(0)
    assert len(await sender.settled()) == MAX_UNANSWERED
    for number in range(10):
        sender.pacing.answered(number)
    assert waiting not in await sender.settled()
    assert len(sender.sent) == MAX_UNANSWERED + 4


async def test_who_has_to_be_alone_is() -> None:
    sender = Sender()
    sender.enter(0)
    sender.enter(1, tries=TRIES_IN_COMPANY)
    sender.enter(2, tries=TRIES_IN_COMPANY)
    sender.enter(3)
    assert await sender.settled() == [0, 3]
    sender.pacing.answered(0)
    assert await sender.settled() == [0, 3]
    sender.pacing.answered(3)
    assert await sender.settled() == [0, 3, 1]
    sender.enter(4, new=True)
    assert await sender.settled() == [0, 3, 1]
    sender.pacing.answered(1)
    assert await sender.settled() == [0, 3, 1, 4]
    # A stream of others doesn't keep it out for ever.
    for number in range(5, 500):
        sender.enter(number)
        sender.pacing.answered(number - 1)
        await sender.settled()
    assert 2 in sender.sent


async def test_a_session_that_has_ended_is_sent_nothing_and_loses_nothing() -> None:
    sender = Sender()
    sender.enter(0)
    sender.open = False
    sender.enter(1)
    assert await sender.settled() == [0]
    assert (sender.pacing.waiting, sender.pacing.unanswered) == (1, [0])
    sender.pacing.clear()
    assert (sender.pacing.waiting, sender.pacing.unanswered) == (0, [])


async def open_requests(client: EngineClient, count: int) -> list[Generation]:
    """All accepted."""
    names = (str(number) for number in range(count))
    return list(
        await asyncio.gather(*(client.submit(list(b"x"), SHORT, name=name) for name in names))
    )


async def test_thousands_come_back_in_one_session(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    """More than the pipe holds: all at once would end the next session as well."""
    generations = await open_requests(client, 9000)
    engine.lose_session()
    await until(lambda: len(engine.submits) >= 18_000 or len(engine.ended) > 1)
    assert len(engine.ended) <= 1, engine.ended
    again = engine.submits[9000:]
    assert [submit.name for submit in again] == [str(number) for number in range(9000)]
    assert all(submit.resumed for submit in again)
    for number in (0, 4500, 8999):
        engine.text(again[number], str(number), finish="length")
        assert (await collect(generations[number]))[0][0] == str(number)


async def test_they_come_as_fast_as_they_are_accepted_and_new_ones_between(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    await open_requests(client, 600)
    engine.accepting = False
    engine.lose_session()
    [session] = client._fleet
    await until(lambda: len(engine.submits) == 600 + MAX_UNANSWERED)
    await until(lambda: session.pacing.waiting == 600 - MAX_UNANSWERED)
    new = asyncio.create_task(client.submit(list(b"y"), SHORT, name="new"))
    await until(lambda: session.pacing.waiting == 601 - MAX_UNANSWERED)
    for submit in engine.submits[600:603]:
        engine.send(Accepted(submit.request))
    await until(lambda: len(engine.submits) == 603 + MAX_UNANSWERED)
    assert "new" in [submit.name for submit in engine.submits[-3:]]
    # The session ends in the middle: all are told of again, in their order.
    before = len(engine.submits)
    engine.accepting = True
    engine.lose_session()
    await until(lambda: len(engine.submits) == before + 601)
    names = [submit.name for submit in engine.submits[before:]]
    assert [name for name in names if name != "new"] == [str(number) for number in range(600)]
    (await new).abort()


async def test_who_waits_in_line_can_be_aborted_and_has_its_deadline(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    generations = await open_requests(client, MAX_UNANSWERED + 1)
    soon = Terms(deadline=time.monotonic() + 2.0)
    late = await client.submit(list(b"x"), SHORT, name="late", terms=soon)
    engine.accepting = False
    engine.lose_session()
    [session] = client._fleet
    await until(lambda: session.pacing.waiting == 2)
    generations[-1].abort()
    assert (await collect(late))[0][2] == "timeout"
    assert session.pacing.waiting == 0
    engine.accepting = True
    heard = {submit.name for submit in engine.submits[MAX_UNANSWERED + 2 :]}
    assert heard == {str(number) for number in range(MAX_UNANSWERED)}
    assert engine.aborts == [], "of what it has not heard of it isn't told"
    generations[0].abort()
    await until(lambda: engine.aborts)


async def test_what_sessions_die_of_is_sent_alone_and_fails_in_the_end(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    generations = await open_requests(client, 5)
    sessions: list[list[str]] = [[]]

    def dies_of_two(submit: Any) -> None:
        if engine.session:  # What comes later in the same moment isn't looked at.
            sessions[-1].append(submit.name)
            if submit.name == "2":
                sessions.append([])
                engine.lose_session()

    engine.silent_on, engine.script = {"2"}, dies_of_two
    engine.lose_session()
    with pytest.raises(RequestFailed, match="6 times in a row before this request was accepted"):
        await collect(generations[2])
    await until(lambda: len(sessions[-1]) == 4)
    *died, last = sessions
    # Nobody looked at 3 and 4, which had been sent with it: so they have to be alone as well.
    assert died == [["0", "1", "2"]] * (TRIES_IN_COMPANY + TRIES_ALONE)
    assert sorted(last) == ["0", "1", "3", "4"]
    latest = {submit.name: submit for submit in engine.submits}
    for number in (0, 1, 3, 4):
        engine.text(latest[str(number)], "!", finish="length")
        assert (await collect(generations[number]))[0][0] == "!"


async def test_what_was_accepted_and_waits_may_see_any_number_of_ends(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    await open_requests(client, 3)
    for session in range(1, 10):
        engine.lose_session()
        await until(lambda session=session: len(engine.submits) == 3 + 3 * session)
        await until(lambda: not client._fleet.sessions[0].pacing.unanswered)
        assert {request.placement.tries for request in client._dispatch.requests()} == {0}
