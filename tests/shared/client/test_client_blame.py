"""Which deaths of engine cores a front end holds against a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.client.routing import MOST_PENDING, Blame
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until
from tests.shared.client.fleet_scene import LONG, Scene, on

pytestmark = [pytest.mark.timeout(240)]


def test_only_what_was_in_a_step_and_whose_engine_came_back_otherwise_is_blamed() -> None:
    blame = Blame()
    blame.lost("a", "one", innocent=False)
    blame.answered("a", "two")
    assert blame.deaths == 0, "it only waited"
    blame.entered()
    blame.left()
    blame.lost("a", "one", innocent=False)
    blame.answered("a", "two")
    assert blame.deaths == 0, "it waited again"
    blame.entered()
    blame.lost("a", "two", innocent=False)
    blame.answered("b", "other")
    assert blame.deaths == 0, "nobody knows yet"
    blame.answered("a", "three")
    assert blame.deaths == 1
    blame.answered("a", "four")
    assert blame.deaths == 1, "it has had nothing to do with that one"


def test_the_same_life_acquits_wherever_it_answers() -> None:
    for place in "ab":
        blame = Blame()
        blame.entered()
        blame.lost("a", "one", innocent=False)
        blame.answered(place, "one")
        blame.answered("a", "two")
        assert blame.deaths == 0


def test_what_is_known_to_be_no_death_is_none() -> None:
    blame = Blame()
    blame.entered()
    blame.lost("a", "one", innocent=True)
    blame.answered("a", "two")
    blame.entered()
    blame.lost("a", None, innocent=False)
    blame.answered("a", "two")
    assert blame.deaths == 0


def test_a_token_clears_everything() -> None:
    blame = Blame()
    for life in ("one", "two"):
        blame.entered()
        blame.lost("a", life, innocent=False)
    blame.answered("a", "three")
    assert blame.deaths == 1, "one at a place: the first was never found dead"
    blame.entered()
    blame.lost("b", "one", innocent=False)
    blame.entered()
    blame.gained()
    blame.lost("a", "three", innocent=False)
    blame.answered("a", "four")
    blame.answered("b", "four")
    assert blame.deaths == 0


def test_what_is_pending_is_bounded() -> None:
    blame = Blame()
    for number in range(3 * MOST_PENDING):
        blame.entered()
        blame.lost(f"ipc://{number}", "one", innocent=False)
    for number in range(3 * MOST_PENDING):
        blame.answered(f"ipc://{number}", "two")
    assert blame.deaths == MOST_PENDING


@pytest.fixture
async def lives(endpoint: str, engine: ScriptedEngine) -> AsyncIterator[list[ScriptedEngine]]:
    """Lives of the engine core, one after the other."""
    lives = [engine]
    yield lives
    for each in lives[1:]:
        if not each.server.socket.closed:
            await each.die()


async def next_life(lives: list[ScriptedEngine], endpoint: str, submits: int) -> ScriptedEngine:
    """The engine core is killed, and comes back."""
    await lives[-1].die()
    lives.append(ScriptedEngine(endpoint, boot=b"boot-n-%d" % len(lives)))
    await until(lambda: len(lives[-1].submits) == submits)
    return lives[-1]


@pytest.mark.asyncio
async def test_what_merely_waited_is_never_accused(
    client: Any, lives: list[ScriptedEngine], endpoint: str
) -> None:
    """The engine core is killed again and again before a worker has come."""
    for number in range(20):
        await client.submit(list(b"x"), LONG, name=str(number))
    for _ in range(3):
        successor = await next_life(lives, endpoint, 20)
        assert {submit.deaths for submit in successor.submits} == {0}


@pytest.mark.asyncio
async def test_what_ran_is_accused_and_its_neighbours_are_not(
    client: Any, lives: list[ScriptedEngine], endpoint: str
) -> None:
    for name in ("runs", "waits", "gains"):
        await client.submit(list(b"x"), LONG, name=name)
    for death in range(1, 3):
        life = lives[-1]
        runs, _, gains = life.submits
        life.entered(runs, gains)
        life.text(gains, "!")
        life.tell(steps=death)
        await until(lambda death=death: client.status is not None and client.status.steps == death)
        successor = await next_life(lives, endpoint, 3)
        assert [(s.name, s.deaths) for s in successor.submits] == [
            ("runs", death),
            ("waits", 0),
            ("gains", 0),
        ]


@pytest.mark.asyncio
async def test_a_pause_of_the_engine_core_is_no_death(
    client: Any, lives: list[ScriptedEngine], endpoint: str
) -> None:
    """One life answers again, however often."""
    [engine] = lives
    await client.submit(list(b"x"), LONG, name="r")
    for session in range(1, 5):
        engine.entered(engine.submits[-1])
        engine.tell(steps=session)
        await until(lambda steps=session: client.status and client.status.steps == steps)
        engine.lose_session()
        await until(lambda count=session: len(engine.submits) == count + 1)
        assert engine.submits[-1].deaths == 0
    await next_life(lives, endpoint, 1)
    assert lives[-1].submits[0].deaths == 0, "in the last session it was in no step"


@pytest.mark.asyncio
async def test_pauses_of_two_engine_cores_are_no_deaths(scene: Scene) -> None:
    """A request goes from one to the other and back, and nobody has died."""
    first, second, client = await scene.two()
    generation = await on(first, second, client)
    here, there = first, second
    for _ in range(4):
        here.entered(here.submits[-1])
        here.tell(steps=here.changes.get("steps", 0) + 1)
        await until(
            lambda here=here: any(
                each.status and each.status.steps == here.changes["steps"]
                for each in client.engines
            )
        )
        count = len(there.submits)
        here.lose_session()
        await until(lambda there=there, count=count: len(there.submits) > count)
        assert there.submits[-1].deaths == 0
        await scene.ready(2)
        here, there = there, here
    here.text(here.submits[-1], "end", finish="length")
    assert (await collect(generation))[0][0] == "end"


@pytest.mark.asyncio
async def test_a_death_counts_once_it_is_known(scene: Scene) -> None:
    """With two engine cores a request has moved on before the killed one is back."""
    first, second, client = await scene.two()
    await on(first, second, client)
    first.entered(first.submits[0])
    first.tell(steps=7)
    await until(lambda: client.engines[0].status and client.engines[0].status.steps == 7)
    await first.die()
    await until(lambda: second.submits)
    assert second.submits[0].deaths == 0
    third = scene.engine(0, boot=b"boot-thr")
    await scene.ready(2)
    second.lose_session()
    await until(lambda: third.submits)
    assert third.submits[0].deaths == 1
    # Whatever it was, it has got past that.
    third.entered(third.submits[0])
    third.send(Outputs([SequenceOutput(third.submits[0].request, 0, [120])]))
    await asyncio.wait_for(anext(aiter(client._dispatch.requests()[0])), 60)
    await scene.ready(2)
    await third.die()
    await until(lambda: len(second.submits) == 2)
    assert second.submits[1].deaths == 0
    assert second.submits[1].sampling == third.submits[0].sampling
