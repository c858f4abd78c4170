"""A beam search through real sessions, beside an obvious one, over a model that is a table."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from typing import Any

import pytest

from penstock.client import BeamSearchParams, EngineClient, Hypothesis, beam_search
from penstock.errors import DeadlineExceeded, EngineUnavailable, RequestFailed
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_frontend import Advance, OpenSequence, Submit
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from penstock.request.terms import Terms
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import until

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

PROMPT = list(b"once")
LETTERS = list(range(97, 105))


def logprobs(tokens: list[int]) -> dict[int, float]:
    """The log-probability of each letter after these tokens."""
    digest = hashlib.blake2b(bytes(tokens), digest_size=2 * len(LETTERS)).digest()
    weights = {
        letter: 1 + int.from_bytes(digest[2 * at : 2 * at + 2], "big")
        for at, letter in enumerate(LETTERS)
    }
    total = sum(weights.values())
    return {letter: math.log(weight / total) for letter, weight in weights.items()}


def obvious(
    width: int, steps: int, ends: tuple[int, ...], penalty: float
) -> list[tuple[list[int], float]]:
    """Sequences and scores, best first; every continuation of every beam is written down."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for step in range(1, steps + 1):
        every = [
            (total + logprob, [*tokens, letter])
            for total, tokens in beams
            for letter, logprob in logprobs(PROMPT + tokens).items()
        ]
        every.sort(key=lambda each: -each[0])
        for total, tokens in every[:width]:
            if tokens[-1] in ends or step == steps:
                done.append((total / len(tokens) ** penalty, tokens))
        done = sorted(done, key=lambda each: -each[0])[:width]
        kept = every[: max(2, 1 + len(ends)) * width]
        beams = [each for each in kept if each[1][-1] not in ends][:width]
        if not beams:
            break
        best = beams[0][0] / len(beams[0][1]) ** penalty
        if len(done) == width and best <= done[-1][0]:
            break
    return [(tokens, score) for score, tokens in done]


class Model:
    """Answers an engine core's steps. hold: so many beams of a step are left unanswered, for
    `release`."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.steps = 0
        self.held: list[tuple[int, OpenSequence]] = []
        self.hold_at: tuple[int, int] | None = None
        self.open = 0
        """Sequences at once, at most."""
        engine.script = self.take

    def take(self, message: Submit | Advance) -> None:
        if isinstance(message, Submit):
            self.candidates = message.sampling.logprobs or 0
            self.prompt = message.prompt_token_ids
        self.steps += 1
        self.open = max(self.open, len(message.sequences))
        hold = 0
        if self.hold_at is not None and self.hold_at[0] == self.steps:
            hold = self.hold_at[1]
        answered = message.sequences[: len(message.sequences) - hold]
        self.held = [(message.request, s) for s in message.sequences[len(answered) :]]
        for sequence in answered:
            self.answer(message.request, sequence)

    def release(self) -> None:
        for request, sequence in self.held:
            self.answer(request, sequence)

    def answer(self, request: int, sequence: OpenSequence) -> None:
        found = sorted(logprobs(self.prompt + sequence.emitted).items(), key=lambda each: -each[1])
        found = found[: self.candidates]
        entry = TokenLogprobs(found[0][1], tuple(t for t, _ in found), tuple(p for _, p in found))
        output = SequenceOutput(request, sequence.index, [found[0][0]], [entry], "length")
        self.engine.send(Outputs([output]))


@pytest.fixture
def model(engine: ScriptedEngine) -> Model:
    return Model(engine)


def search(client: EngineClient, params: BeamSearchParams, **more: Any) -> Any:
    return asyncio.create_task(beam_search(client, PROMPT, params, name="b", **more))


def same(found: list[Hypothesis], expected: list[tuple[list[int], float]]) -> None:
    assert [each.token_ids for each in found] == [tokens for tokens, _ in expected]
    assert [each.score for each in found] == pytest.approx([score for _, score in expected])


@pytest.mark.parametrize(
    ("width", "steps", "ends", "penalty"),
    [
        (1, 5, (), 1.0),
        (3, 8, (), 1.0),
        (4, 12, (97,), 1.0),
        (5, 10, (98, 99), 0.0),
        (6, 9, (100, 101, 102), 2.0),
        (8, 6, (97, 98, 99, 100, 101, 102), -0.5),
    ],
)
async def test_beams_are_those_of_an_obvious_search(
    client: EngineClient,
    engine: ScriptedEngine,
    model: Model,
    width: int,
    steps: int,
    ends: tuple[int, ...],
    penalty: float,
) -> None:
    params = BeamSearchParams(
        beam_width=width,
        max_tokens=steps,
        length_penalty=penalty,
        stop_token_ids=list(ends),
        logprobs=2,
    )
    found = await search(client, params)
    same(found, obvious(width, steps, ends, penalty))
    for each in found:
        assert each.logprobs is not None
        assert sum(step.logprob for step in each.logprobs) == pytest.approx(each.cumulative_logprob)
        assert [len(step.top_ids) for step in each.logprobs] == [2] * len(each.token_ids)
        assert each.finish_reason == ("stop" if each.token_ids[-1] in ends else "length")
        assert each.stop_reason == (each.token_ids[-1] if each.token_ids[-1] in ends else None)
    # One request all along, with a step for each token, that is ended when nothing follows.
    [submit] = engine.submits
    assert (submit.beams, submit.stopping.max_tokens, submit.resumed) == (width, 1, False)
    assert submit.sequences == [OpenSequence(0, [])]
    lengths = [{len(s.emitted) for s in advance.sequences} for advance in engine.advances]
    assert lengths == [{length} for length in range(1, len(lengths) + 1)]
    assert all(
        [s.index for s in advance.sequences] == list(range(len(advance.sequences)))
        for advance in engine.advances
    )
    assert model.open <= width
    await until(lambda: engine.aborts)
    assert [abort.request for abort in engine.aborts] == [submit.request]
    assert client.open_requests == 0


@pytest.mark.parametrize("hold", [1, 2, 4])
async def test_a_search_goes_on_where_its_session_was_lost(
    client: EngineClient, engine: ScriptedEngine, model: Model, hold: int
) -> None:
    """In the middle of a step, some of whose beams have been answered."""
    params = BeamSearchParams(beam_width=4, max_tokens=9)
    model.hold_at = (5, hold)
    running = search(client, params)
    await until(lambda: model.held)
    [request] = client._dispatch.requests()
    await until(lambda: request.open_sequences == hold)
    held = [sequence for _, sequence in model.held]
    model.hold_at = None
    engine.lose_session()
    same(await running, obvious(4, 9, (), 1.0))
    again = engine.submits[1]
    assert (again.beams, again.resumed, again.stopping.max_tokens) == (4, True, 5)
    assert again.sequences == held


async def test_a_search_whose_steps_kill_engine_cores_is_told_apart(
    client: EngineClient, engine: ScriptedEngine, endpoint: str
) -> None:
    running = search(client, BeamSearchParams(beam_width=2, max_tokens=3))
    await until(lambda: engine.submits)
    engine.entered(engine.submits[0])
    engine.tell(steps=1)
    await until(lambda: client.status and client.status.steps == 1)
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two")
    try:
        await until(lambda: successor.submits)
        assert successor.submits[0].deaths == 1
        Model(successor).take(successor.submits[0])
        same(await running, obvious(2, 3, (), 1.0))
    finally:
        await successor.die()


async def test_who_cancels_a_search_ends_it_in_the_engine(
    client: EngineClient, engine: ScriptedEngine, model: Model
) -> None:
    model.hold_at = (3, 1)
    running = search(client, BeamSearchParams(beam_width=3, max_tokens=9))
    await until(lambda: model.held)
    running.cancel()
    await until(lambda: engine.aborts)
    assert engine.aborts[0].request == engine.submits[0].request
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    assert client.open_requests == 0
    model.release()


async def test_its_deadline_passes_in_the_engine(
    client: EngineClient, engine: ScriptedEngine, model: Model
) -> None:
    """It ends with the beams that there were; without any, it is an error."""
    model.hold_at = (3, 3)
    running = search(client, BeamSearchParams(beam_width=3, max_tokens=9))
    await until(lambda: model.held)
    for request, sequence in model.held:
        engine.send(Outputs([SequenceOutput(request, sequence.index, finish="timeout")]))
    found = await running
    assert {(each.finish_reason, len(each.token_ids)) for each in found} == {("timeout", 2)}
    await until(lambda: engine.aborts)
    model.hold_at = (model.steps + 1, 1)
    running = search(client, BeamSearchParams(beam_width=3, max_tokens=9))
    await until(lambda: len(engine.submits) == 2)
    engine.send(Outputs([SequenceOutput(engine.submits[-1].request, 0, finish="timeout")]))
    with pytest.raises(DeadlineExceeded, match="before there was a first token"):
        await running


async def test_its_deadline_passes_between_two_steps(
    client: EngineClient, engine: ScriptedEngine, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.hold_at = (4, 3)
    late = Terms(deadline=time.monotonic() + 1000)
    running = search(client, BeamSearchParams(beam_width=3, max_tokens=9), terms=late)
    await until(lambda: model.held)
    client._dispatch.requests()[0].terms = Terms(deadline=time.monotonic() - 1)
    model.release()
    found = await running
    assert {(each.finish_reason, len(each.token_ids)) for each in found} == {("timeout", 4)}
    assert len(engine.advances) == 3
    await until(lambda: engine.aborts)


async def test_a_step_that_fails_and_a_refusal_are_errors(
    client: EngineClient, engine: ScriptedEngine, model: Model
) -> None:
    model.hold_at = (2, 2)
    running = search(client, BeamSearchParams(beam_width=3, max_tokens=9))
    await until(lambda: model.held)
    for request, sequence in model.held:
        failed = SequenceOutput(request, sequence.index, finish="error", error="out of luck")
        engine.send(Outputs([failed]))
    with pytest.raises(RequestFailed, match="out of luck"):
        await running
    await until(lambda: engine.aborts)
    engine.refusing = "unavailable"
    with pytest.raises(EngineUnavailable, match="for the test"):
        await search(client, BeamSearchParams(beam_width=3, max_tokens=9))
    assert client.open_requests == 0
