"""A front end's client with several engine cores, each speaking the real protocol from a script."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock import SamplingParams
from penstock.client import EngineClient
from penstock.errors import EngineUnavailable, Limited, Overloaded, RequestFailed, StartupError
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from testing.scripted_engine import FAST
from tests.shared.client.client_requests import collect, until
from tests.shared.client.fleet_scene import BOOTS, LONG, on

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


async def test_another_engine_finishes_what_a_dead_one_began(scene):
    first, second, client = await scene.two()
    generation = await on(first, second, client)
    first.text(first.submits[0], "left ")
    assert (await anext(generation))[0].text == "left "
    await first.die()
    await until(lambda: second.submits)
    [again] = second.submits
    assert (bytes(again.sequences[0].emitted), again.deaths) == (b"left ", 0)
    assert again.resumed
    assert again.sampling == first.submits[0].sampling
    second.text(again, "right", finish="length")
    assert (await collect(generation))[0][0] == "right"
    assert (client.moved, client.refused) == (1, 0)
    assert client.connected
    assert [each.connected for each in client.engines] == [False, True]


async def test_an_engine_that_drained_is_left_without_a_death(scene):
    first, second, client = await scene.two()
    await on(first, second, client)
    first.entered(first.submits[0])
    first.tell(draining=True)
    await until(lambda: client.engines[0].draining)
    assert not client.status.draining, "the other is not"
    # What is new goes to the other one, whatever the load.
    second.tell(running=1000)
    await until(lambda: client.engines[1].status.running == 1000)
    await client.submit(list(b"y"), LONG, name="new")
    assert (len(first.submits), len(second.submits)) == (1, 1)
    first.server.close()
    first._task.cancel()
    await until(lambda: len(second.submits) == 2)
    assert second.submits[1].deaths == 0
    assert second.submits[1].resumed


async def test_a_model_that_sleeps_is_woken_only_where_the_others_are_full(scene):
    first, second, client = await scene.two()
    first.tell(sleeping=1)
    second.tell(running=1000)
    await until(lambda: client.engines[0].status.sleeping and client.engines[1].status.running)
    await client.submit(list(b"x"), LONG, name="awake")
    await until(lambda: len(second.submits) == 1)
    second.tell(waiting=1)
    await until(lambda: client.engines[1].status.waiting)
    await client.submit(list(b"y"), LONG, name="woken")
    await until(lambda: len(first.submits) == 1)
    second.tell(sleeping=1, waiting=0)
    await until(lambda: client.engines[1].status.sleeping)
    await client.submit(list(b"z"), LONG, name="both asleep")
    await until(lambda: len(first.submits) == 2)
    assert len(second.submits) == 1


async def test_what_an_engine_hands_over_goes_on_elsewhere(scene):
    first, second, client = await scene.two()
    generation = await on(first, second, client)
    [submit] = first.submits
    first.text(submit, "left ")
    assert (await anext(generation))[0].text == "left "
    first.tell(draining=True)
    await until(lambda: client.engines[0].draining)
    assert not second.submits
    first.tell(hands_over=True)
    await until(lambda: second.submits)
    [again] = second.submits
    assert (bytes(again.sequences[0].emitted), again.resumed, again.deaths) == (b"left ", True, 0)
    await until(lambda: first.aborts)
    assert [(each.request, each.handed_over) for each in first.aborts] == [(submit.request, True)]
    first.text(submit, "late ")  # It was on its way, and comes again from the other one.
    second.text(again, "late right", finish="length")
    assert (await collect(generation))[0][0] == "late right"
    assert (client.moved, client.refused) == (1, 0)


@pytest.mark.parametrize(
    "elsewhere",
    [{"draining": True}, {"ready": False}, {"fingerprint": "other"}],
    ids=lambda changes: next(iter(changes)),
)
async def test_what_finds_no_place_with_the_same_numbers_ends_where_it_is(scene, elsewhere):
    first, second, client = await scene.two()
    generation = await on(first, second, client)
    [submit] = first.submits
    second.tell(steps=5, **elsewhere)
    await until(lambda: any(e.status and e.status.steps == 5 for e in client.engines))
    first.tell(draining=True, hands_over=True)
    await until(lambda: client.engines[0].draining)
    await asyncio.sleep(0.3)  # That nothing moves has no state to wait for: it would within a turn.
    first.text(submit, "whole", finish="length")
    assert (await collect(generation))[0][0] == "whole"
    assert not second.submits
    assert not first.aborts


async def test_everything_waits_where_every_engine_is_gone(scene):
    first, second, client = await scene.two()
    generation = await on(first, second, client)
    first.entered(first.submits[0])
    first.tell(steps=1)
    await until(lambda: client.engines[0].status.steps == 1)
    await first.die()
    await until(lambda: second.submits)
    await second.die()
    await until(lambda: not client.connected)
    with pytest.raises(EngineUnavailable, match="no session"):
        await client.submit(list(b"y"), LONG, name="new")
    third = scene.engine(0, boot=BOOTS[2])
    await until(lambda: third.submits)
    assert third.submits[0].deaths == 1, "with the second one it was in no step"
    third.text(third.submits[0], "end", finish="length")
    assert (await collect(generation))[0][0] == "end"


async def test_a_silence_of_our_own_is_nobodys_death(scene):
    first, second, client = await scene.two()
    await on(first, second, client)
    first.entered(first.submits[0])
    first.tell(steps=1)
    await until(lambda: client.engines[0].status.steps == 1)
    first._task.cancel()
    # This process was frozen: both sessions have ended when it wakes.
    for session in client._fleet:
        session._polled -= 60
        session.transport._numbering.last_heard -= 60
        session.pump()
    await until(lambda: second.submits)
    assert second.submits[0].deaths == 0


@pytest.mark.parametrize("code", ["overloaded", "unavailable"])
async def test_a_full_or_leaving_engine_passes_a_request_on(scene, code):
    first, second, client = await scene.two()
    second.tell(running=100)
    await until(lambda: client.engines[1].status.running == 100)
    first.refusing = code
    await client.submit(list(b"x"), LONG, name="r")
    assert (len(first.submits), len(second.submits)) == (1, 1)
    assert not second.submits[0].resumed
    # Once: where the other has no room either, that is the answer.
    second.refusing = "overloaded"
    with pytest.raises(Overloaded) as raised:
        await client.submit(list(b"x"), LONG, name="r")
    assert raised.value.retry_after == 2
    assert (len(first.submits), len(second.submits)) == (2, 2)
    assert client.open_requests == 1
    # What a tenant may have is not passed on.
    first.refusing = "limited"
    with pytest.raises(Limited):
        await client.submit(list(b"x"), LONG, name="r")
    assert len(second.submits) == 2


async def test_prompts_that_begin_alike_meet(scene):
    first, second, client = await scene.two()
    prompts = [bytes([65 + n]) * 20 for n in range(6)]
    for prompt in prompts:
        for tail in (b"", b"!", b" and more"):
            generation = await client.submit(list(prompt + tail), LONG, name="p")
            generation.abort()
            first.tell(), second.tell()
            await until(lambda: all(session.load == 0 for session in client._fleet))
    got = [{bytes(s.prompt_token_ids[:20]) for s in engine.submits} for engine in (first, second)]
    assert got[0].isdisjoint(got[1])
    assert len(first.submits) + len(second.submits) == 18
    assert sum(client.routed.values()) == client.routed[0, "prefix"] + client.routed[1, "prefix"]


async def test_own_submissions_count_until_the_next_status(scene):
    first, second, client = await scene.two()
    first.telling = second.telling = False
    for engine in (first, second):
        engine.tell(preemptions=1)
    # None that was said before is on its way any more.
    await until(lambda: [each.status.preemptions for each in client.engines] == [1, 1])
    for _ in range(10):
        await client.submit(list(b"A" * 20), LONG, name="p")
    # All have the same favourite, and nobody has said anything yet.
    assert sorted([len(first.submits), len(second.submits)]) == [3, 7] or sorted(
        [len(first.submits), len(second.submits)]
    ) == [4, 6]


async def test_another_model_is_refused_while_an_engine_of_ours_is_known(scene, caplog):
    first = scene.engine(0)
    client = await scene.connect(2)
    await scene.ready(1)
    second = scene.engine(1, digest="d2")
    await until(lambda: client.engines[1].reason.startswith("its model digest is 'd2'"))
    assert not client.engines[1].connected
    assert client.welcome.digest == "d1"
    generation = await client.submit(list(b"x"), LONG, name="r")
    await first.die()
    await until(lambda: not client.connected)
    await asyncio.sleep(0.3)
    assert not second.submits
    # It comes back, and has moved on to the new model as well.
    third = scene.engine(0, digest="d2", boot=BOOTS[2])
    with pytest.raises(RequestFailed, match="another model"):
        await collect(generation)
    await scene.ready(2)
    assert client.welcome.digest == "d2"
    assert not third.submits


async def test_the_same_engine_under_two_addresses_is_one(scene):
    first = scene.engine(0)
    (scene.folder / "b").symlink_to(scene.folder / "a")
    client = await scene.connect(2)
    await until(lambda: sum(each.reason.startswith("it is the engine") for each in client.engines))
    assert sum(each.connected for each in client.engines) == 1
    # Under its other address it stays when the first one's connection is lost.
    session = next(s for s in client._fleet if s.connected)
    session.retired = True
    await until(lambda: [each.connected for each in client.engines] == [True])
    await client.submit(list(b"x"), LONG, name="r")
    assert len(first.submits) == 1


async def test_what_computes_alike_is_told_without_those_that_say_nothing(scene):
    first, _, client = await scene.two()
    alike = client.status.fingerprint
    assert alike
    first.tell(ready=False, fingerprint=None)
    await until(lambda: not client.engines[0].ready)
    assert client.status.fingerprint == alike


async def test_limits_are_those_that_all_keep(scene):
    first, second, client = await scene.two()
    welcome = second.welcome
    limits = first.welcome().limits
    small = msgspec.structs.replace(limits, max_model_len=50, grammar_kinds=("lark", "regex"))
    second.welcome = lambda: msgspec.structs.replace(welcome(), limits=small)
    second.server.end(second.session, "for the test")
    await until(lambda: client.welcome.limits.max_model_len == 50)
    assert set(client.welcome.limits.grammar_kinds) == {"regex", "lark"}
    assert client.welcome.boot in {first.boot.hex(), second.boot.hex()}


async def test_a_name_brings_engines_and_takes_them_away(scene):
    answer: list[str] = []
    client = EngineClient(
        "dns://localhost:5570", name="test", settings=FAST, resolver=lambda host, port: list(answer)
    )
    client._fleet._interval = 0.05
    scene.client = client
    await client.start()
    await asyncio.sleep(0.1)
    assert client.engines == []
    assert not client.connected
    first, second = scene.engine(0), scene.engine(1)
    answer.append(scene.endpoint(0))
    await scene.ready(1)
    answer.append(scene.endpoint(1))
    await scene.ready(2)
    generation = await on(first, second, client)
    del answer[0]
    # It gets nothing new, finishes what it has, and is dropped then.
    await until(lambda: client._fleet.sessions[0].retired)
    await client.submit(list(b"y"), LONG, name="new")
    assert (len(first.submits), len(second.submits)) == (1, 1)
    assert len(client.engines) == 2
    first.text(first.submits[0], "done", finish="length")
    assert (await collect(generation))[0][0] == "done"
    await until(lambda: len(client.engines) == 1)
    assert client.engines[0].endpoint == scene.endpoint(1)
    assert client.engines[0].index == 1
    # Its number is free again.
    answer.append(scene.endpoint(2))
    scene.engine(2)
    await scene.ready(2)
    assert [each.index for each in client.engines] == [0, 1]


async def test_more_addresses_than_are_dialled(scene):
    places = [f"ipc://{scene.folder}/{n}" for n in range(200)]
    client = EngineClient(
        "dns://localhost:5570", name="test", settings=FAST, resolver=lambda host, port: places
    )
    scene.client = client
    await client.start()
    await until(lambda: client.engines)
    assert len(client.engines) == 64


async def test_several_sequences_move_as_one(scene):
    first, second, client = await scene.two()
    second.tell(running=100)
    await until(lambda: client.engines[1].status.running == 100)
    generation = await client.submit(list(b"x"), SamplingParams(n=3, max_tokens=50), name="n")
    [submit] = first.submits
    first.text(submit, "whole", sequence=1, finish="length")
    first.text(submit, "ha", sequence=2)
    await until(lambda: generation.open_sequences == 2)
    await first.die()
    await until(lambda: second.submits)
    again = second.submits[0]
    assert [(s.index, bytes(s.emitted)) for s in again.sequences] == [(0, b""), (2, b"ha")]
    for index in (0, 2):
        gained = list({0: b"zero", 2: b"lf"}[index])
        second.send(Outputs([SequenceOutput(again.request, index, gained, finish="length")]))
    assert {i: entry[0] for i, entry in (await collect(generation)).items()} == {
        0: "zero",
        1: "whole",
        2: "half",
    }


@pytest.mark.parametrize("place", ["tcp://10.0.0.1:5570", "dns://engine:5570"])
async def test_a_network_in_plain_is_refused_at_once(place):
    with pytest.raises(StartupError, match="there is no --curve-dir"):
        EngineClient(f"ipc:///run/a,{place}", name="test")
