"""The front end's client against an engine that speaks the real protocol from a script."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from penstock import RepetitionDetectionParams, SamplingParams
from penstock.client.session import AT_ONCE
from penstock.client.session_turns import ENDS_AT_ONCE
from penstock.errors import EngineUnavailable, InvalidRequest, Limited, Overloaded
from penstock.protocol.common import Claim, Repetition
from penstock.protocol.to_frontend import Outputs, Rejected, SequenceOutput
from penstock.request.terms import Terms
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


async def test_a_request_runs_to_its_end(engine, client):
    generation = await client.submit(list(b"hi"), SamplingParams(seed=7), name="one")
    [submit] = engine.submits
    assert (submit.prompt_token_ids, submit.sampling.seed, submit.name) == (list(b"hi"), 7, "one")
    engine.text(submit, "Grüß")
    engine.text(submit, "e")
    engine.send(Outputs([SequenceOutput(submit.request, 0, [0], finish="stop")]))
    result = await collect(generation)
    # The EOS token is counted and not shown.
    assert result == {0: ("Grüße", [*"Grüße".encode(), 0], "stop", None)}
    assert client.open_requests == 0


async def test_a_stop_string_ends_the_text_and_tells_the_engine_where(engine, client):
    params = SamplingParams(stop=["END"], max_tokens=50, logprobs=None)
    generation = await client.submit(list(b"x"), params, name="stop")
    [submit] = engine.submits
    engine.text(submit, "ab E")
    engine.text(submit, "N")
    engine.text(submit, "D and more")
    result = await collect(generation)
    assert result == {0: ("ab ", list(b"ab END"), "stop", "END")}
    await until(lambda: engine.finishes)
    assert (engine.finishes[0].sequence, engine.finishes[0].at) == (0, 6)


async def test_drafts_behind_a_stop_string_are_not_a_part_of_the_output(engine, client):
    params = SamplingParams(stop=["END"], max_tokens=50, logprobs=None)
    generation = await client.submit(list(b"x"), params, name="stop")
    [submit] = engine.submits
    for text, drafted in (("ab", 4), (" ENDING", 8)):
        engine.send(
            Outputs([SequenceOutput(submit.request, 0, list(text.encode()), drafted=drafted)])
        )
    assert await collect(generation) == {0: ("ab ", list(b"ab END"), "stop", "END")}
    assert (generation.drafted, generation.kept) == (12, 1 + 3)


async def test_a_less_indented_line_ends_the_text_and_tells_the_engine_where(engine, client):
    params = SamplingParams(min_indentation=2, max_tokens=50)
    generation = await client.submit(list(b"x"), params, name="indented", read_at_end=True)
    [submit] = engine.submits
    assert not submit.gathered, "the end is looked for in each token as it comes"
    engine.text(submit, "a\n  b\n")
    engine.text(submit, "cd")
    assert await collect(generation) == {0: ("a\n  b", list(b"a\n  b\nc"), "stop", "")}
    await until(lambda: engine.finishes)
    assert (engine.finishes[0].sequence, engine.finishes[0].at) == (0, 7)


async def test_min_tokens_guards_the_text_from_stop_strings(engine, client):
    params = SamplingParams(stop="a", min_tokens=3, max_tokens=50)
    generation = await client.submit(list(b"x"), params, name="min")
    [submit] = engine.submits
    engine.text(submit, "aaabba")
    assert await collect(generation) == {0: ("aaabb", list(b"aaabba"), "stop", "a")}


async def test_the_engine_is_told_what_counts_as_a_loop(engine, client):
    detection = RepetitionDetectionParams(max_pattern_size=64, min_count=5)
    for given, expected in ((None, None), (detection, Repetition(1, 64, 5))):
        params = SamplingParams(repetition_detection=given)
        generation = await client.submit(list(b"x"), params, name="loop")
        submit = engine.submits[-1]
        assert submit.stopping.repetition == expected
        engine.text(submit, "one", finish="repetition")
        assert await collect(generation) == {0: ("one", list(b"one"), "repetition", None)}


async def test_sequences_end_on_their_own(engine, client):
    generation = await client.submit(list(b"x"), SamplingParams(n=2), name="two")
    [submit] = engine.submits
    engine.text(submit, "one", sequence=1, finish="length")
    engine.text(submit, "zero", sequence=0, finish="length")
    result = await collect(generation)
    assert {index: entry[0] for index, entry in result.items()} == {0: "zero", 1: "one"}


async def test_abort_reaches_the_engine_and_ends_the_iteration(engine, client):
    generation = await client.submit(list(b"x"), SamplingParams(max_tokens=50), name="a")
    generation.abort()
    generation.abort()
    assert (await collect(generation))[0][2] == "abort"
    await until(lambda: engine.aborts)
    assert [abort.request for abort in engine.aborts] == [engine.submits[0].request]


@pytest.mark.parametrize("withdrawn", [False, True])
async def test_an_answer_that_nobody_wants_any_more_is_not_kept(engine, client, withdrawn):
    terms = Terms(claim=Claim(b"digest"))
    generation = await client.submit([5], SamplingParams(max_tokens=9), name="one", terms=terms)
    generation.abort(withdrawn=withdrawn)
    await until(lambda: engine.aborts)
    assert [abort.kept for abort in engine.aborts] == [not withdrawn]


async def test_a_caller_that_is_cancelled_while_it_waits_aborts(engine, client):
    engine.accepting = False
    task = asyncio.create_task(client.submit(list(b"x"), SamplingParams(), name="c"))
    await until(lambda: engine.submits)
    task.cancel()
    await until(lambda: engine.aborts)
    assert client.open_requests == 0


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("invalid", InvalidRequest),
        ("overloaded", Overloaded),
        ("limited", Limited),
        ("unavailable", EngineUnavailable),
    ],
)
async def test_a_rejection_is_raised(engine, client, code, error):
    engine.accepting = False
    task = asyncio.create_task(client.submit(list(b"x"), SamplingParams(), name="c"))
    await until(lambda: engine.submits)
    engine.send(Rejected(engine.submits[0].request, code, "because", retry_after_ms=1500))
    with pytest.raises(error, match="because") as caught:
        await task
    if code in ("overloaded", "limited"):
        assert caught.value.retry_after == 1.5


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([1] * 100, "context is 100"),
        ([256], "256 is not in"),
        ([-1], "-1 is not in"),
    ],
)
async def test_a_prompt_that_cannot_run_is_refused_at_once(engine, client, prompt, words):
    with pytest.raises(InvalidRequest, match=words):
        await client.submit(prompt, SamplingParams(), name="bad")
    assert engine.submits == []


async def test_status_comes_and_ages(engine, client):
    await until(lambda: client.status is not None)
    assert client.status.ready
    assert client.status_age(1e12) > 1e9


async def test_tokens_of_a_long_message_leave_before_its_last_was_looked_at(engine, client):
    sequences = 3 * AT_ONCE + 1
    params = SamplingParams(n=sequences, max_tokens=9)
    generation = await client.submit(list(b"x"), params, name="many")
    [submit] = engine.submits
    given: list[list[int]] = []

    def sink(deltas):
        given.append([delta.index for delta in deltas])
        return lambda: None

    generation.feed(sink)
    following = asyncio.create_task(anext(generation))
    await until(lambda: generation._waited_for)
    engine.send(Outputs([SequenceOutput(submit.request, i, [65]) for i in range(sequences)]))
    await until(lambda: sum(map(len, given)) == sequences)
    assert [len(each) for each in given] == [AT_ONCE] * 3 + [1]
    assert [index for each in given for index in each] == list(range(sequences))
    assert not following.done()
    generation.abort()
    await following


async def test_tokens_that_leave_together_are_all_written_before_one_goes_out(engine, client):
    done: list[str] = []
    following = []
    for name in ("a", "b"):
        generation = await client.submit(list(b"x"), SamplingParams(max_tokens=9), name=name)
        generation.feed(
            lambda deltas, name=name: (
                done.append(f"{name} written") or (lambda: done.append(f"{name} out"))
            )
        )
        following.append((generation, asyncio.create_task(anext(generation))))
        await until(lambda generation=generation: generation._waited_for)
    engine.send(Outputs([SequenceOutput(each.request, 0, [65]) for each in engine.submits]))
    await until(lambda: len(done) == 4)
    assert done == ["a written", "b written", "a out", "b out"]
    for generation, task in following:
        generation.abort()
        await task


async def test_ends_of_a_step_are_dealt_with_a_few_at_a_time(engine, client):
    """Other requests' tokens go out between them."""
    count, over = 3 * ENDS_AT_ONCE + 1, []

    async def consume(generation):
        async for _ in generation:
            pass
        over.append(generation)

    following, ends = [], []
    for _ in range(count):
        generation = await client.submit(list(b"x"), SamplingParams(max_tokens=9), name="r")
        generation.feed(lambda deltas: ends.append(deltas[0].finish_reason) or (lambda: None))
        following.append(asyncio.create_task(consume(generation)))
        await until(lambda made=generation: made._waited_for)
    engine.send(Outputs([SequenceOutput(s.request, 0, finish="length") for s in engine.submits]))
    rounds = [0]
    while len(over) < count:
        await asyncio.sleep(0)
        rounds.append(len(over))
    assert ends == ["length"] * count, "sinks are given all that came at once"
    assert max(after - before for before, after in pairwise(rounds)) == ENDS_AT_ONCE
    await asyncio.gather(*following)


async def test_a_sink_gets_what_it_takes_and_the_consumer_the_rest(engine, client):
    generation = await client.submit(list(b"x"), SamplingParams(n=2, max_tokens=50), name="fed")
    [submit] = engine.submits
    taken: list[tuple[int, str]] = []
    willing = True

    def sink(deltas):
        if not willing or any(delta.finish_reason for delta in deltas):
            return None
        taken.extend((delta.index, delta.text) for delta in deltas)
        return lambda: None

    generation.feed(sink)
    # Nobody waits yet: what comes is the consumer's.
    engine.text(submit, "a")
    await until(lambda: generation._pending)
    steps = generation.__aiter__()
    assert [delta.text for delta in await anext(steps)] == ["a"]
    following = asyncio.create_task(anext(steps))
    await until(lambda: generation._waited_for)
    for text in ("b", "c"):
        engine.text(submit, text)
        await until(lambda text=text: taken[-1:] == [(0, text)])
    engine.text(submit, "D", sequence=1)
    await until(lambda: taken[-1:] == [(1, "D")])
    assert not following.done()
    # What it leaves is merged, in order, and waits for the consumer.
    willing = False
    engine.text(submit, "e")
    engine.text(submit, "f")
    await until(following.done)
    left = [delta.text for delta in await following]
    willing = True
    engine.text(submit, "g", finish="length")
    engine.text(submit, "H", sequence=1, finish="length")
    rest = await collect(generation)
    assert "".join(left) + rest[0][0] == "efg"
    assert rest[1][0] == "H"
    assert taken == [(0, "b"), (0, "c"), (1, "D")]
    assert client.open_requests == 0
