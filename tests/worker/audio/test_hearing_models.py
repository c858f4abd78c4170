"""Models that hear, against transformers on the same weights, and the same bits in any company and
any chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock_worker.media.hearing import UnfitSound
from penstock_worker.media.interface import MEL
from penstock_worker.media.pieces import DividedEncoding
from tests.worker.audio import gemma3n_hearing, phi4_hearing
from tests.worker.audio.hearing_cases import CASES
from tests.worker.audio.hearing_models import (
    Heard,
    Part,
    both,
    heard,
    job_of,
    runner_of,
    their_features,
    theirs_of,
    words,
)
from tests.worker.driver import Driver, Job, LogitsOf
from tests.worker.models.parity import RELATIVE_TOLERANCE, compare_answer, run_recorded
from tests.worker.vision.picture_runners import load
from tests.worker.vision.pictures import text_of
from tests.worker.vision.vision_cases import PLACEHOLDER

WANTED = 8
LENGTHS = {
    "gemma4": (0.045, 0.31, 1.0),
    "gemma4-unclipped": (0.05, 0.3, 0.9),
    "gemma4-12b": (0.01, 0.31, 1.0),
    "gemma3n": (0.045, 0.31, 1.0),
    "phi4-multimodal": (0.045, 0.31, 1.0),
    "granite-speech": (0.045, 0.31, 1.0),
    "granite-speech-odd": (0.02, 0.31, 1.0),
    "qwen2-audio": (0.045, 0.31, 1.0),
    "voxtral": (0.3, 2.0, 2.7),
    "qwen3-asr": (0.045, 0.31, 2.3),
    "qwen3-omni": (0.045, 0.31, 2.3),
    "qwen2.5-omni": (0.045, 0.305, 1.0),
}
"""Seconds; the longest of a cut sound fills its chunk, of another one has two chunks, of one in
blocks two parts that don't see one another."""


def sounds(case: str) -> list[Heard]:
    return [heard(case, seconds, number) for number, seconds in enumerate(LENGTHS[case])]


@pytest.mark.parametrize("case", CASES)
def test_encodings_of_sounds_equal_transformers(case: str) -> None:
    theirs, ours = both(case)
    for each in sounds(case):
        found = ours.tower.encode({MEL: each.mel})
        assert found.shape == (each.item.rows, ours.config.media_width)
        work = ours.tower.check({MEL: each.mel}, each.item.rows, ())
        divided = DividedEncoding("a", ours.tower.pieces({MEL: each.mel}))
        for until in range(0, work, max(work // 5, 1)):
            divided.advance(until)
        assert torch.equal(divided.finish(), found)
        given = their_features(case, [each])
        with torch.inference_mode():
            if case.startswith("gemma4"):
                seen = theirs.model.get_audio_features(**given)
                true = seen.pooler_output[seen.attention_mask]
            elif case == "gemma3n":
                true = gemma3n_hearing.rows_of(theirs, given["input_features"][0])
            elif case == "phi4-multimodal":
                true = phi4_hearing.rows_of(theirs, given["input_features"][0])
            elif case.startswith("granite-speech"):
                true = theirs.get_audio_features(given["input_features"][0]).pooler_output[0]
                true = true * theirs.config.text_config.embedding_multiplier
            elif case.endswith("-omni"):
                true = theirs.get_audio_features(**given).last_hidden_state
            elif case == "voxtral":
                true = theirs.get_audio_features(given["input_features"]).pooler_output
            else:
                tokens = torch.tensor([[5] + [PLACEHOLDER] * each.item.rows])
                caught: list[torch.Tensor] = []
                hook = theirs.model.multi_modal_projector.register_forward_hook(
                    lambda _module, _inputs, out, caught=caught: caught.append(out)
                )
                theirs(tokens, attention_mask=torch.ones_like(tokens), **given)
                hook.remove()
                true = caught[0].reshape(-1, ours.config.hidden_size)[: each.item.rows]
        size = ours.config.hidden_size
        assert not found[:, size:].any()  # levels that only pictures have
        found = found[:, :size]
        assert bool(((found - true).abs() <= RELATIVE_TOLERANCE * true.abs().max()).all())


def asked(case: str) -> list[list[Part]]:
    """Text; a sound between words, at the beginning, and twice; several of different lengths."""
    short, middle, long = sounds(case)
    return [
        [words(40, 0)],
        [words(5, 1), long, words(9, 2)],
        [middle, words(3, 3)],
        [words(30, 4), short, words(1, 5), long, middle, words(20, 6)],
        [words(2, 7), short, words(4, 8), short, words(30, 9)],
    ]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_answers_to_sounds_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    """Several sequences in a batch, in steps of 37 tokens, so that sounds lie across their ends."""
    theirs, ours = both(case)
    prompts, seen = asked(case), LogitsOf()
    runner = runner_of(ours, backend, observer=seen)
    load(runner, tmp_path, *sounds(case))
    driver = Driver(runner, num_blocks=128, slots=8, budget=37)
    driver.encode = [each.item.name for each in sounds(case)]
    jobs = [job_of(parts, WANTED) for parts in prompts]
    compared = 0
    answers = run_recorded(driver, jobs, seen)
    for (job, found), parts in zip(answers, prompts, strict=True):
        assert job.error is None
        tokens = text_of(job.tokens)
        true = theirs_of(case, theirs, parts, tokens)[: len(found)]
        compared += compare_answer(found, true, len(job.prompt), tokens)
    assert compared >= len(jobs) * WANTED // 2


def run(
    case: str, backend: str, folder: Path, *, budget: int, company: int = 0
) -> tuple[Job, torch.Tensor]:
    """The answer of a prompt with two sounds, and every logit of it."""
    _, ours = both(case)
    seen = LogitsOf()
    runner = runner_of(ours, backend, observer=seen)
    short, middle, long = sounds(case)
    load(runner, folder, short, middle, long)
    driver = Driver(runner, num_blocks=128, slots=8, budget=budget, seed=budget)
    names = [each.item.name for each in (short, middle, long)]
    driver.encode = names[::-1] if company else names
    mine = job_of([words(13, 1), long, words(6, 2), short, words(9, 3)], WANTED)
    others = [job_of([words(3 + n, n), middle, words(9, n)], WANTED) for n in range(company)]
    slot = 0
    while not mine.done:
        driver._step([job for job in (mine, *others) if not job.done])
        slot = slot if mine.slot is None else mine.slot
    assert mine.error is None
    return mine, seen.of(slot)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_alone_in_company_and_in_chunks(case: str, backend: str, tmp_path: Path) -> None:
    one, logits = run(case, backend, tmp_path, budget=512)
    for budget, company in ((512, 3), (29, 0), (33, 3)):
        other, found = run(case, backend, tmp_path, budget=budget, company=company)
        assert other.tokens == one.tokens
        assert torch.equal(found, logits), (budget, company)


@pytest.mark.parametrize("case", CASES)
def test_sounds_that_the_tower_cant_take(case: str) -> None:
    _, ours = both(case)
    mel = sounds(case)[0].mel
    rows = sounds(case)[0].item.rows
    ours.tower.check({MEL: mel}, rows, ())
    for wrong in (mel[:, 1:], mel[:, :, :-1].repeat(3, 0), mel.astype("float64"), mel[0]):
        with pytest.raises(UnfitSound):
            ours.tower.check({MEL: wrong}, rows, ())
    for rows_, grid in ((rows + 1, ()), (rows, (1,))):
        with pytest.raises(UnfitSound, match="announced"):
            ours.tower.check({MEL: mel}, rows_, grid)
