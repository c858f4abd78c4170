"""Which tiny models of each family the tests compute, by backend and by what they show of it.

Read from the tests' own parameters, so that the reference's table says what was run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tests.system import test_recurrent_over_ranks
from tests.worker.encoder_decoder.whisper_cases import CASES as WHISPER_CASES
from tests.worker.models import (
    recurrent_cases,
    test_family_bits,
    test_gguf_families,
    test_gguf_m3,
    test_gguf_v4,
    test_parity_families,
    test_parity_on_cpu,
    test_recurrent_gguf,
    test_recurrent_models,
    test_recurrent_on_cpu,
    test_twins,
)
from tests.worker.models.family_cases import (
    BITS_ON_DEVICE,
    CASES,
    ON_DEVICE,
    RANKS_ON_DEVICE,
)
from tests.worker.models.recurrent_cases import RECURRENT_CASES
from tests.worker.models.twins import TWINS
from tests.worker.parallel import test_cpu_ranks

LING3 = Counter(BailingMoeV3=1)  # test_ling3
SHOWN = ("float32 parity", "bits", "GGUF", "TP 2")


def coverage() -> dict[str, dict[str, Counter[str]]]:
    """Returns how many cases there are of each family, as transformers names it: by backend, by
    SHOWN."""
    gguf = _cases(test_gguf_families.test_a_gguf_file_equals_transformers)
    of_their_own = Counter(
        DeepseekV4=len(_cases(test_gguf_v4.test_a_gguf_file_of_v4_equals_transformers)),
        MiniMaxM3VL=len(_cases(test_gguf_m3.test_a_gguf_file_of_m3_equals_transformers)),
    )
    return {
        "cpu": {
            "float32 parity": _families(
                case
                for case in _cases(test_parity_on_cpu.test_the_cpu_kernels_equal_transformers)
                if case not in test_parity_on_cpu.REFUSED
            )
            + _families(_cases(test_recurrent_on_cpu.test_recurrent_cpu_kernels_equal_transformers))
            + _families(_cases(test_twins.test_equals_its_twin))
            + LING3
            + Counter(Whisper=len(WHISPER_CASES)),
            "bits": _families(
                _cases(test_family_bits.test_on_the_cpu_kernels)
                + _cases(
                    test_recurrent_on_cpu.test_rows_of_recurrent_cpu_kernels_depend_on_their_sequence_alone
                )
                + _cases(test_twins.test_on_the_cpu_kernels)
            )
            + LING3
            + Counter(Whisper=1),
            "GGUF": _families(case for case in gguf if case not in test_gguf_families.NOT_ON_CPU)
            + _families(_cases(test_recurrent_gguf.test_a_recurrent_gguf_file_equals_transformers))
            + _families(_cases(test_twins.test_equals_its_twin_from_gguf))
            + of_their_own,
            "TP 2": _families(_cases(test_cpu_ranks.test_two_ranks_have_one_workers_bits)),
        },
        "reference": {
            "float32 parity": _families(
                _cases(test_parity_families.test_the_reference_equals_transformers)
                + _cases(test_recurrent_models.test_recurrent_layers_equal_transformers)
                + _cases(test_twins.test_equals_its_twin)
            )
            + LING3
            + Counter(Whisper=len(WHISPER_CASES)),
            "bits": _families(
                _cases(test_family_bits.test_rows_depend_on_their_sequence_alone)
                + _cases(test_recurrent_models.test_recurrent_rows_depend_on_their_sequence_alone)
                + _cases(test_twins.test_rows_of_twins_depend_on_their_sequence_alone)
            )
            + LING3
            + Counter(Whisper=1),
            "GGUF": _families(
                gguf
                + _cases(test_recurrent_gguf.test_a_recurrent_gguf_file_equals_transformers)
                + _cases(test_twins.test_equals_its_twin_from_gguf)
            )
            + of_their_own,
            "TP 2": _families(
                _cases(test_cpu_ranks.test_ranks_of_the_reference)
                + _cases(test_recurrent_over_ranks.test_tensor_parallel_ranks)
            ),
        },
        "triton": {
            "float32 parity": _families(ON_DEVICE + recurrent_cases.ON_DEVICE),
            "bits": _families(BITS_ON_DEVICE + recurrent_cases.BITS_ON_DEVICE),
            "GGUF": _families(test_gguf_families.ON_DEVICE),
            "TP 2": _families(RANKS_ON_DEVICE + recurrent_cases.RANKS_ON_DEVICE),
        },
    }


def _cases(test: Callable[..., Any]) -> list[str]:
    """Returns the values of the test's parameter `case`."""
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize" and mark.args[0] == "case":
            return [getattr(value, "values", (value,))[0] for value in mark.args[1]]
    raise ValueError(f"{test.__name__} has no parameter `case`")


def _families(cases: Iterable[str]) -> Counter[str]:
    known = CASES | RECURRENT_CASES | test_gguf_families.OWN | test_recurrent_gguf.OWN
    twins = {case: twin.name for case, twin in TWINS.items()}
    return Counter(twins.get(case) or known[case][0] for case in cases)
