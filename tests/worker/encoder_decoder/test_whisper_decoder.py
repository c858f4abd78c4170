"""Decoders that attend to an encoder's output: against transformers on the same weights, and the
same bits alone, in company, in chunks, for any block size, and when they are computed again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from penstock.protocol.from_worker import MediaReady
from penstock.protocol.media import Media, MediaSpan
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.media.interface import MEL
from tests.worker.driver import GREEDY, Driver, Job, LogitsOf
from tests.worker.encoder_decoder.sounds import (
    encoded,
    features,
    job_of,
    media_of,
    message_of,
    name_of,
    runner_of,
    theirs_of,
    words,
)
from tests.worker.encoder_decoder.whisper_cases import CASES, ROWS, START, both
from tests.worker.models.parity import RELATIVE_TOLERANCE, compare_answer, run_recorded
from tests.worker.vision.picture_runners import answered

BACKENDS = ("reference", "cpu")
WANTED = 10
SOUNDS = [1, 2]


@pytest.mark.parametrize("case", CASES)
def test_whispers_encodings_equal_transformers(case: str) -> None:
    theirs, ours = both(case)
    for seed in SOUNDS:
        true = encoded(theirs, seed)
        found = ours.tower.encode({MEL: features(theirs, seed)[None].numpy()})
        assert found.shape == true.shape == (ROWS, ours.config.hidden_size)
        assert bool(((found - true).abs() <= RELATIVE_TOLERANCE * true.abs().max()).all())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_whispers_answers_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    """Steps of 29 tokens end within encoders' rows, and within prompts."""
    theirs, ours = both(case)
    asked = [(1, words(3, 1)), (2, words(12, 2)), (2, words(0, 3)), (1, words(40, 4))]
    seen = LogitsOf()
    runner = runner_of(theirs, ours, [], observer=seen, backend=backend)
    for sound in SOUNDS:
        message = message_of(theirs, sound, tmp_path / name_of(sound))
        assert isinstance(answered(runner, message), MediaReady)
    driver = Driver(runner, num_blocks=128, slots=8, budget=29)
    driver.encode = [name_of(sound) for sound in SOUNDS]
    jobs = [job_of(sound, text, WANTED) for sound, text in asked]
    compared = 0
    answers = run_recorded(driver, jobs, seen)
    for (job, found), (sound, text) in zip(answers, asked, strict=True):
        assert job.error is None
        found = found[ROWS:]
        true = theirs_of(theirs, sound, text + job.tokens)[: len(found)]
        compared += compare_answer(found, true, len(text), job.tokens)
    assert compared >= len(jobs) * WANTED // 2


def run(
    backend: str, budget: int, company: int = 0, block_size: int = 16, preempt_every: int = 0
) -> tuple[list[int], torch.Tensor]:
    theirs, ours = both("whisper")
    seen = LogitsOf()
    runner = runner_of(theirs, ours, SOUNDS, observer=seen, block_size=block_size, backend=backend)
    driver = Driver(
        runner,
        num_blocks=2048 // block_size,
        slots=8,
        block_size=block_size,
        budget=budget,
        preempt_every=preempt_every,
        seed=budget,
    )
    mine = job_of(1, words(9, 1), WANTED)
    jobs = [mine, *(job_of(2 - n % 2, words(5 + 9 * n, n), WANTED) for n in range(company))]
    slot = 0
    while not mine.done:
        if preempt_every and driver.step == preempt_every:
            driver._release(mine)
        driver._step([job for job in jobs if not job.done])
        slot = slot if mine.slot is None else mine.slot
    assert mine.error is None
    return mine.tokens, seen.of(slot)


@cache
def undisturbed(backend: str) -> tuple[list[int], torch.Tensor]:
    return run(backend, 512)


SMALLEST = {"reference": 1, "cpu": 16}
"""Tokens of a block."""


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 512, "company": 4},
        {"budget": 5},
        {"budget": 23, "company": 4},
        {"budget": 512, "block_size": 4},
        {"budget": 31, "company": 2, "block_size": 64},
        {"budget": 40, "company": 3, "preempt_every": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_depend_on_the_request_alone(backend: str, options: dict[str, int]) -> None:
    tokens, logits = undisturbed(backend)
    block_size = options.get("block_size", 16)
    found_tokens, found = run(
        backend, **options | {"block_size": max(block_size, SMALLEST[backend])}
    )
    assert found_tokens == tokens
    assert torch.equal(found, logits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_behind_a_prefix_of_another_sequence_with_the_same_sound(backend: str) -> None:
    """The other one's blocks hold the sound's keys and values: it isn't encoded again."""
    theirs, ours = both("whisper")
    seen = LogitsOf()
    runner = runner_of(theirs, ours, [1], observer=seen, backend=backend)
    tokens = [START] * ROWS + words(20, 1)
    blocks = list(range(-(-len(tokens) // 16)))
    again = [*blocks[:2], *range(20, 18 + len(blocks))]

    def new(slot: int, blocks: list[int]) -> NewSequence:
        return NewSequence(slot, tokens, len(tokens), 0, GREEDY, blocks, media=media_of(1))

    runner.execute(Plan(1, 0, [], [new(0, blocks)], [SlotWork(0, 0, len(tokens))]))
    runner.execute(Plan(2, 1, [], [new(1, again)], [SlotWork(1, 32, len(tokens) - 32)]))
    behind = torch.stack([seen.by_slot[1][at] for at in range(32, len(tokens))])
    assert torch.equal(behind, seen.of(0)[32:])


def test_a_prompt_without_a_sound_fails_alone() -> None:
    """It would read blocks that others have left."""
    theirs, ours = both("whisper")
    driver = Driver(runner_of(theirs, ours, [1]), num_blocks=128, slots=8)
    text = Job([START] * (ROWS + 4), 3)
    elsewhere = job_of(1, words(3, 1), 3)
    elsewhere.prompt.insert(0, 5)
    elsewhere.media = Media(media_of(1).items, (MediaSpan(0, 1, ROWS),))
    good = job_of(1, words(3, 1), 3)
    driver.run([text, elsewhere, good])
    assert "one sound" in (text.error or "")
    assert "one sound" in (elsewhere.error or "")
    assert good.error is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_encoding_that_is_missing_fails_its_sequence_alone(backend: str) -> None:
    theirs, ours = both("whisper")
    driver = Driver(runner_of(theirs, ours, [1], backend=backend), num_blocks=128, slots=8)
    lost, good = job_of(2, words(3, 1), 3), job_of(1, words(3, 1), 3)
    driver.run([lost, good])
    assert "could not be encoded" in (lost.error or "")
    assert good.error is None


def test_a_sound_changes_the_answer() -> None:
    theirs, _ = both("whisper")
    assert not torch.allclose(encoded(theirs, 1), encoded(theirs, 2))
    text = words(3, 1)
    assert not torch.allclose(theirs_of(theirs, 1, text), theirs_of(theirs, 2, text))
