"""When tokens are spoken: as transformers' attention says on the same weights, and the same alone,
in company, in chunks, and when it is computed again."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import ModelOutput
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from penstock.model.transcription_facts import Alignment
from penstock.protocol.common import Pooling
from tests.worker.driver import Driver
from tests.worker.encoder_decoder.sounds import features, job_of, runner_of, words
from tests.worker.encoder_decoder.whisper_cases import CASES, both

BACKENDS = ("reference", "cpu")
HEADS = ((0, 1), (2, 0), (2, 1))
ALIGNMENT = Alignment(heads=HEADS)
SOUND, SKIPPED = 70, 3
"""Rows of the encoder that hold sound; tokens that were never spoken."""


def theirs_of(theirs: Any, seed: int, text: list[int]) -> np.ndarray:
    """Seconds of the tokens behind the skipped ones."""
    with torch.inference_mode():
        output = theirs(
            features(theirs, seed)[None],
            decoder_input_ids=torch.tensor([text]),
            output_attentions=True,
        )
    shown: Any = ModelOutput(
        cross_attentions=[output.cross_attentions], sequences=torch.zeros(1, len(text) + 1)
    )
    found = WhisperGenerationMixin._extract_token_timestamps(
        SimpleNamespace(config=theirs.config),
        shown,
        [list(pair) for pair in HEADS],
        num_frames=2 * SOUND,
        num_input_ids=SKIPPED,
    )
    return found[0, SKIPPED:-1].numpy()


def asked_of(seed: int, count: int) -> Any:
    pooling = Pooling("align", rows=SOUND, skipped=SKIPPED)
    return job_of(seed, words(count, seed), 1, pooling=pooling)


def told(job: Any) -> np.ndarray:
    assert job.error is None
    assert job.vectors is not None
    assert job.vectors.is_sound()
    found: np.ndarray = np.frombuffer(job.vectors.data, "<f4")
    assert job.vectors.shape == found.shape
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_times_equal_transformers(case: str, backend: str) -> None:
    theirs, ours = both(case)
    runner = runner_of(theirs, ours, [1, 2], backend=backend, alignment=ALIGNMENT)
    jobs = [asked_of(1, 25), asked_of(2, 60), job_of(1, words(5, 3), 4)]
    Driver(runner, num_blocks=128, slots=8, budget=29).run(jobs)
    for job, (seed, count) in zip(jobs, [(1, 25), (2, 60)], strict=False):
        wanted = theirs_of(theirs, seed, words(count, seed))
        assert np.allclose(told(job) * 0.02, wanted)
    assert len(set(told(jobs[1]).tolist())) > 5
    assert len(jobs[2].tokens) == 4


@cache
def undisturbed(backend: str) -> bytes:
    return run(backend, {"budget": 512}, 0)


def run(backend: str, options: dict[str, int], company: int) -> bytes:
    theirs, ours = both("whisper")
    size = options.get("block_size", 16)
    runner = runner_of(theirs, ours, [1, 2], backend=backend, alignment=ALIGNMENT, block_size=size)
    driver = Driver(runner, num_blocks=2048 // size, slots=8, **options)
    mine = asked_of(1, 40)
    others = [job_of(2 - n % 2, words(5 + 9 * n, n), 6) for n in range(company)]
    driver.run([mine, *others, *(asked_of(2, 30) for _ in range(company // 2))])
    told(mine)
    return bytes(mine.vectors.data)


@pytest.mark.parametrize(
    "options",
    [{"budget": 512}, {"budget": 7}, {"budget": 90, "block_size": 64, "preempt_every": 5}],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_depend_on_the_request_alone(backend: str, options: dict[str, int]) -> None:
    assert run(backend, options, 4) == undisturbed(backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_computed_on_the_way_is_what_text_is_computed_from(backend: str) -> None:
    """Its blocks are found by others: their keys and values are those of any pass."""
    theirs, ours = both("whisper")
    caches = []
    for pooling in (None, Pooling("align", rows=SOUND, skipped=SKIPPED)):
        runner = runner_of(theirs, ours, [1], backend=backend, alignment=ALIGNMENT)
        job = job_of(1, words(20, 1), 1, pooling=pooling)
        Driver(runner, num_blocks=128, slots=8).run([job])
        blocks = runner._kind._forward.kv_blocks()
        caches.append([part[job_blocks(len(job.prompt))].tobytes() for part in blocks])
    assert caches[0] == caches[1]


def job_blocks(tokens: int) -> list[int]:
    """The blocks that the first job of a driver of 128 blocks gets, those that are full."""
    import random

    free = list(range(128))
    random.Random(0).shuffle(free)
    return [free.pop() for _ in range(tokens // 16)]


def test_a_backend_without_it_fails_the_request_alone() -> None:
    theirs, ours = both("whisper")
    jobs = [asked_of(1, 9), job_of(1, words(5, 3), 2)]
    Driver(runner_of(theirs, ours, [1]), num_blocks=128, slots=8).run(jobs)
    assert jobs[0].error == "this worker has no word times"
    assert jobs[1].error is None
