"""Every family of models that write, on the CPU kernels, while its worker or its engine core dies
under a crowd: the tokens and log-probabilities of each request alone, bit for bit.

One list for all: the cases from which the workers' tests of families follow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.model.config import ModelConfig
from penstock.protocol.common import TokenSampling
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.loading import tensors
from testing.in_process import Heard, Numerics, Way
from tests.system.in_process_media import Asked, Deaths, MediaSystem, alone
from tests.worker.models import family_cases, test_recurrent_models, test_twins
from tests.worker.models.manifests import write_manifest
from tests.worker.models.recurrent_cases import RECURRENT_CASES
from tests.worker.models.test_parity_on_cpu import REFUSED
from tests.worker.models.twins import TWINS
from tests.worker.random_weights import RandomWeights

pytestmark = pytest.mark.timeout(120)

NUMERICS = Numerics("cpu", "float32")
BLOCK = 16
NUM_BLOCKS = 96
"""Twice what the crowd needs at once: each turn looks through all of them."""
THREADS = 1
"""Two of so small a model wait for one another. worker/models/test_family_bits.py has both."""
READERS: dict[str, Callable[[str], ModelConfig]] = {
    **dict.fromkeys(family_cases.CASES, family_cases.read),
    **dict.fromkeys(RECURRENT_CASES, test_recurrent_models.read),
    **dict.fromkeys(TWINS, test_twins.read),
}
"""What reads each case's model."""


def asked() -> dict[int, Asked]:
    """The third begins as the first does. All cases have a vocabulary of 199 tokens or more."""
    words = random.Random(4).choices(range(3, 199), k=120)
    greedy = TokenSampling(seed=1, temperature=0.0, logprobs=3)
    sampled = TokenSampling(seed=77, temperature=0.9, top_p=0.95, logprobs=3)
    return {
        1: Asked(words[:60], 12, greedy),
        2: Asked(words[60:67], 14, sampled),
        3: Asked(words[:40] + words[100:], 10, sampled),
    }


def crowd() -> dict[int, Asked]:
    """Ours, and others like them."""
    return {10 * copy + number: each for copy in range(3) for number, each in asked().items()}


def results(heard: dict[int, Heard]) -> dict[int, tuple[list[int], bytes]]:
    return {
        number: (each.tokens, msgspec.msgpack.encode(each.logprobs))
        for number, each in heard.items()
    }


@pytest.fixture
def folder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.setattr(cpu, "open_weights", lambda *_, **__: RandomWeights())
    monkeypatch.setattr(tensors, "check_tensors", lambda prepared: None)  # There are no files.

    def make(case: str) -> Path:
        write_manifest(READERS[case](case), tmp_path, case)
        return tmp_path

    return make


@pytest.mark.parametrize("case", [case for case in READERS if case not in REFUSED])
def test_the_same_bits_whoever_dies(case: str, folder_of: Callable[[str], Path]) -> None:
    checkpoints = BLOCK if case in RECURRENT_CASES else None

    def system(budget: int, deaths: Deaths | None = None, **way: Any) -> MediaSystem:
        way_ = Way(
            BLOCK,
            budget,
            num_blocks=NUM_BLOCKS,
            threads=THREADS,
            checkpoints=checkpoints,
            **way,
        )
        return MediaSystem(folder, NUMERICS, way_, deaths or Deaths())

    folder = folder_of(case)
    true = results(alone(system(2048, prefix_caching=False, steps=1), asked()))
    assert [len(tokens) for tokens, _ in true.values()] == [12, 14, 10]
    assert any(len(set(tokens)) > 3 for tokens, _ in true.values())
    for deaths in (Deaths(worker=3), Deaths(worker=9), Deaths(core=9)):
        disturbed = system(64, deaths)
        disturbed.run(crowd())
        assert disturbed.plans > 12
        for number, found in results(disturbed.heard).items():
            assert found == true[number % 10], (number, deaths)
