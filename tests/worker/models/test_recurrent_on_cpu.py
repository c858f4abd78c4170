"""Models with recurrent layers on the CPU kernels: against transformers, and the same bits in any
company and any chunks, wherever checkpoints lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.prepared_model import WeightFiles
from penstock_worker.forward.cpu import backend as cpu
from tests.worker.cpu_model import CPUModel
from tests.worker.models.recurrent_cases import RECURRENT_CASES
from tests.worker.models.recurrent_runs import BLOCK, CPURun
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_parity_on_cpu import cpu_model
from tests.worker.models.test_recurrent_models import POSITIONS, compare, read
from tests.worker.random_weights import RandomWeights
from tests.worker.recurrent_states import check_own_rows

NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_recurrent_cpu_kernels_equal_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*RECURRENT_CASES[case])
    theirs.save_pretrained(tmp_path)
    compare(cpu_model(tmp_path), theirs)


@pytest.fixture
def random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "open_weights", lambda *ignored, **also: RandomWeights())


def model(case: str, dtype: str = "float32") -> CPUModel:
    return CPUModel(read(case), NO_FILES, dtype, positions=POSITIONS)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_rows_of_recurrent_cpu_kernels_depend_on_their_sequence_alone(
    case: str, random_weights: None
) -> None:
    for dtype in ("float32", "bfloat16"):
        together = CPURun(model(case, dtype), 2, threads=2, every=BLOCK)
        check_own_rows(CPURun(model(case, dtype), 1).step, together.step)
