"""Engine cores with different fingerprints behind one client: no answer is computed by two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import SamplingParams
from penstock.client import BeamSearchParams, beam_search
from penstock.client.placement import fingerprint_name
from penstock.errors import EngineUnavailable, ModelChanged, Overloaded
from penstock.protocol.common import Claim, TokenLogprobs
from penstock.protocol.from_frontend import Advance, Submit
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from penstock.request.terms import Terms
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until
from tests.shared.client.fleet_scene import BOOTS, LONG, on

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

HELD = Terms(fingerprint="f")


async def mixed(scene: Any) -> tuple[ScriptedEngine, ScriptedEngine, Any]:
    """Two engine cores, which compute with "f" and with "g"."""
    first, second = scene.engine(0), scene.engine(1, fingerprint="g")
    client = await scene.connect(2)
    await scene.ready(2)
    return first, second, client


async def begun(first: ScriptedEngine, second: ScriptedEngine, client: Any) -> Any:
    """A stream of the first one, whose client has a token."""
    generation = await on(first, second, client)
    first.text(first.submits[0], "a")
    await anext(generation)
    return generation


async def test_what_has_begun_goes_where_it_is_computed_alike(scene):
    first, second, third = scene.engine(0), scene.engine(1, fingerprint="g"), scene.engine(2)
    client = await scene.connect(3)
    await scene.ready(3)
    second.tell(running=20)
    third.tell(running=40)
    await until(lambda: client.status.running == 60)
    generation = await client.submit(list(b"x"), LONG, name="r")
    first.text(first.submits[0], "a")
    await anext(generation)
    assert client.status.fingerprint is None, "there are two"
    await first.die()
    await until(lambda: third.submits)
    assert bytes(third.submits[0].sequences[0].emitted) == b"a"
    third.text(third.submits[0], "b", finish="length")
    assert (await collect(generation))[0][0] == "b"
    assert not second.submits


async def test_it_waits_for_its_own_kind(scene):
    """The other one is idle all the while, and what has not begun goes there."""
    first, second, client = await mixed(scene)
    generation = await begun(first, second, client)
    await first.die()
    await until(lambda: not client.engines[0].connected)
    fresh = await client.submit(list(b"y"), LONG, name="fresh")
    assert [bytes(each.prompt_token_ids) for each in second.submits] == [b"y"]
    again = scene.engine(0, boot=BOOTS[2])
    await until(lambda: again.submits)
    assert bytes(again.submits[0].sequences[0].emitted) == b"a"
    again.text(again.submits[0], "b", finish="length")
    assert (await collect(generation))[0][0] == "b"
    second.text(second.submits[0], "c", finish="length")
    assert (await collect(fresh))[0][0] == "c"
    assert client.refused == 0


async def test_it_ends_in_words_where_there_is_none(scene):
    """Requests behind it, for which there are engine cores, don't wait with it."""
    first, second, client = await mixed(scene)
    generation = await begun(first, second, client)
    fresh = await on_first(first, second, client)
    await first.die()
    await until(lambda: second.submits)
    assert [bytes(each.prompt_token_ids) for each in second.submits] == [b"y"]
    scene.engine(0, fingerprint="h", boot=BOOTS[2])
    with pytest.raises(ModelChanged) as refused:
        await collect(generation)
    for name in "fgh":
        assert fingerprint_name(name) in str(refused.value)
    assert client.refused == 1
    second.text(second.submits[0], "c", finish="length")
    assert (await collect(fresh))[0][0] == "c"
    assert len(second.submits) == 1


async def on_first(first: ScriptedEngine, second: ScriptedEngine, client: Any) -> Any:
    """A request of the first one that has gained nothing."""
    second.tell(running=100)
    await until(lambda: client.engines[1].status.running == 100)
    generation = await client.submit(list(b"y"), LONG, name="fresh")
    second.tell(running=0)
    await until(lambda: client.engines[1].status.running == 0)
    assert len(first.submits) == 2
    return generation


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_worker_that_comes_back_as_another_gets_none_of_it(scene, elsewhere):
    """An engine core's workers may be on any machine, and load other weights."""
    first, second, client = await mixed(scene)
    if elsewhere:
        second.tell(fingerprint="f")
        await until(lambda: client.fingerprints == {"f"})
    generation = await begun(first, second, client)
    first.tell(ready=False, fingerprint=None)
    await until(lambda: not client.engines[0].ready)
    first.tell(ready=True, fingerprint="h")
    if elsewhere:
        await until(lambda: second.submits)
        second.text(second.submits[0], "b", finish="length")
        assert (await collect(generation))[0][0] == "b"
    else:
        with pytest.raises(ModelChanged):
            await collect(generation)
    await until(lambda: first.aborts)
    assert first.aborts[0].handed_over


async def test_a_choice_that_has_ended_is_a_beginning(scene):
    """The other choices would be another answer's."""
    first, second, client = await mixed(scene)
    second.tell(running=100)
    await until(lambda: client.engines[1].status.running == 100)
    generation = await client.submit(list(b"x"), SamplingParams(n=2, max_tokens=50), name="n")
    first.text(first.submits[0], "whole", sequence=1, finish="length")
    await until(lambda: generation.open_sequences == 1)
    await first.die()
    again = scene.engine(0, boot=BOOTS[2])
    await until(lambda: again.submits)
    assert [each.index for each in again.submits[0].sequences] == [0]
    assert not second.submits


async def test_beams_stay_with_what_they_began_with(scene):
    first, second, client = await mixed(scene)
    second.tell(running=100)
    await until(lambda: client.engines[1].status.running == 100)

    def one_step(message: Submit | Advance) -> None:
        if isinstance(message, Submit):
            entry = TokenLogprobs(-0.5, (97, 98), (-0.5, -1.5))
            first.send(Outputs([SequenceOutput(message.request, 0, [97], [entry], "length")]))

    first.script = one_step
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    searching = asyncio.create_task(beam_search(client, list(b"x"), params, name="b"))
    await until(lambda: first.advances)
    await first.die()
    scene.engine(0, fingerprint="h", boot=BOOTS[2])
    with pytest.raises(ModelChanged):
        await searching
    assert not second.submits


async def test_what_is_held_is_placed_nowhere_else(scene):
    first, second, client = await mixed(scene)
    first.tell(running=100)
    await until(lambda: client.engines[0].status.running == 100)
    await client.submit(list(b"x"), LONG, name="held", terms=HELD)
    assert (len(first.submits), len(second.submits)) == (1, 0)
    # Though the other one has room.
    first.refusing = "overloaded"
    with pytest.raises(Overloaded):
        await client.submit(list(b"x"), LONG, name="held", terms=HELD)
    assert not second.submits


async def test_what_is_held_by_nobody_is_sent_again(scene):
    """Its client has nothing of an answer yet, unless it goes on with one."""
    _, second, client = await mixed(scene)
    with pytest.raises(EngineUnavailable, match="send it again"):
        await client.submit(list(b"x"), LONG, name="r", terms=Terms(fingerprint="h"))
    goes_on = Terms(fingerprint="h", claim=Claim(b"digest", goes_on=True))
    with pytest.raises(ModelChanged, match=fingerprint_name("h")):
        await client.submit(list(b"x"), LONG, name="r", terms=goes_on)
    assert not second.submits


async def test_what_would_compute_a_request_is_told_before_it_is_placed(scene):
    first, second, client = await mixed(scene)
    for busy, idle in ((first, second), (second, first)):
        busy.tell(running=100)
        idle.tell(running=0)
        loads = [100 if each is busy else 0 for each in (first, second)]
        await until(lambda n=loads: [each.status.running for each in client.engines] == n)
        told = client.fingerprint_for(list(b"x"), Terms())
        assert told == (idle.changes.get("fingerprint") or "f")
    assert client.fingerprints == client.lately() == {"f", "g"}
    await first.die()
    await until(lambda: not client.engines[0].connected)
    assert client.fingerprints == {"g"}
    assert client.lately() == {"f", "g"}, "it may come back"
    assert client.undecided == 1
