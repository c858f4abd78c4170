"""Models that hear, on the CUDA kernels: numbers are the reference's, and nothing is mixed up
between host and device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.protocol.from_worker import MediaReady
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.triton_limits import ranks_with_towers
from penstock_worker.media.hearing import AudioModel, open_audio_tower
from penstock_worker.media.interface import MEL, BatchMedia
from penstock_worker.parallel.place import RankPlace
from penstock_worker.steps.runner import StepRunner
from tests.worker.audio import hearing_cases, hearing_models
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.driver import Driver, Job, LogitsOf
from tests.worker.encoder_decoder import sounds, whisper_cases
from tests.worker.vision.picture_runners import answered, load

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def run(runner: StepRunner[Any], seen: LogitsOf, jobs: list[Job], names: list[str]) -> None:
    """In steps of 37 tokens, which end within sounds."""
    driver = Driver(runner, num_blocks=128, slots=8, budget=37)
    driver.encode = names
    driver.run(jobs)
    assert [job.error for job in jobs] == [None] * len(jobs)


def compare(ours: tuple[LogitsOf, list[Job]], true: tuple[LogitsOf, list[Job]]) -> None:
    (seen, jobs), (wanted, others) = ours, true
    assert [job.tokens for job in jobs] == [job.tokens for job in others]
    assert seen.by_slot.keys() == wanted.by_slot.keys()
    for slot in seen.by_slot:
        found, logits = seen.of(slot), wanted.of(slot)
        assert (found - logits).abs().max() < 1e-4 * logits.abs().max()


@pytest.mark.parametrize("case", hearing_cases.CASES)
def test_sounds_in_prompts(case: str, tmp_path: Path) -> None:
    _, ours = hearing_models.both(case)
    sound = hearing_models.heard(case, 0.3, 1)
    found = {}
    for backend in ("triton", "reference"):
        seen = LogitsOf()
        runner = hearing_models.runner_of(ours, backend, observer=seen)
        load(runner, tmp_path, sound)
        jobs = [
            hearing_models.job_of(
                [hearing_models.words(33, 1), sound, hearing_models.words(3, 2)], 2
            ),
            hearing_models.job_of([hearing_models.words(4, 3)], 3),
        ]
        run(runner, seen, jobs, [sound.item.name])
        found[backend] = seen, jobs
    compare(found["triton"], found["reference"])


@pytest.mark.parametrize("case", ["whisper"])
def test_a_decoder_beside_an_encoder(case: str, tmp_path: Path) -> None:
    """Chunks that end within the encoder's rows and within prompts, two prompts with one sound, and
    their decodes, which are captured."""
    theirs, ours = whisper_cases.both(case)
    found = {}
    for backend in ("triton", "reference"):
        seen = LogitsOf()
        runner = sounds.runner_of(theirs, ours, [], observer=seen, backend=backend)
        message = sounds.message_of(theirs, 1, tmp_path / sounds.name_of(1))
        assert isinstance(answered(runner, message), MediaReady)
        jobs = [sounds.job_of(1, sounds.words(count, count), 3) for count in (2, 12)]
        run(runner, seen, jobs, [sounds.name_of(1)])
        for slot in seen.by_slot:
            seen.by_slot[slot] = {
                at - whisper_cases.ROWS: row
                for at, row in seen.by_slot[slot].items()
                if at >= whisper_cases.ROWS
            }
        found[backend] = seen, jobs
    compare(found["triton"], found["reference"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("case", hearing_cases.CASES)
def test_towers_compute_on_the_device(case: str) -> None:
    """On a simulated GPU, with shapes only."""
    _, ours = hearing_models.both(case)
    sound = hearing_models.heard(case, 0.3, 1)
    with simulated(Device(1 << 30, computes=False, pace=1)), torch.inference_mode():
        weights = open_audio_tower(ours.files, torch.float32, device=torch.device("cuda", 0))
        rows = AudioModel(ours.config, weights).encode({MEL: sound.mel})
        assert rows.is_cuda
        assert rows.shape == (sound.item.rows, ours.config.media_width)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nothing_is_mixed_up_beside_an_encoder() -> None:
    """On a simulated GPU, with shapes only: stored rows, a prompt, and captured decodes."""
    _, ours = whisper_cases.both("whisper")
    model, rows = replace(ours.cpu, backend="triton"), whisper_cases.ROWS
    with simulated(Device(1 << 30, computes=False, pace=1)) as device, torch.inference_mode():
        recipe = choose(model.prepared(), model.setup(num_blocks=32), 1)
        forward: Any = recipe.build()
        forward = forward(32)
        captured = device.captures
        stored = torch.zeros(rows, ours.config.hidden_size, device=torch.device("cuda", 0))

        def logits(start: int, count: int, media: BatchMedia | None = None) -> torch.Tensor:
            batch = Batch(
                np.ones(count, np.int64),
                [np.arange(12)],
                np.array([start]),
                np.array([count]),
                media=media,
            )
            found: torch.Tensor = forward.logits(batch, np.unique([0, count - 1]))
            return found

        first = logits(0, rows + 2, BatchMedia(np.arange(rows), stored))
        assert first.is_cuda
        assert first.shape == (2, ours.config.vocab_size)
        assert logits(rows + 2, 3).is_cuda
        for step in range(3):
            assert logits(rows + 5 + step, 1).is_cuda
        assert device.captures == captured > 0


def test_several_gpus_hear_nothing() -> None:
    _, ours = hearing_models.both("voxtral")
    assert ranks_with_towers(ours.config, RankPlace()) is None
    assert "hears, and 2 GPUs share it" in (
        ranks_with_towers(ours.config, RankPlace(tensor=2)) or ""
    )
