"""Which tiny models of each family the tests compute, by backend and by what they show of it.

Read from the tests' own parameters, so that the reference's table says what was run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tests.worker.models import (
    test_family_bits,
    test_gguf_families,
    test_parity_families,
    test_parity_on_cpu,
)
from tests.worker.models.family_cases import CASES, ON_DEVICE
from tests.worker.parallel import test_cpu_ranks

SHOWN = ("float32 parity", "bits", "GGUF", "TP 2")


def coverage() -> dict[str, dict[str, Counter[str]]]:
    """Returns how many cases there are of each family, as transformers names it: by backend, by
    SHOWN."""
    gguf = _cases(test_gguf_families.test_equals_transformers)
    return {
        "cpu": {
            "float32 parity": _families(
                case
                for case in _cases(test_parity_on_cpu.test_equals_transformers)
                if case not in test_parity_on_cpu.REFUSED
            ),
            "bits": _families(_cases(test_family_bits.test_on_the_cpu_kernels)),
            "GGUF": _families(case for case in gguf if case not in test_gguf_families.NOT_ON_CPU),
            "TP 2": _families(_cases(test_cpu_ranks.test_two_ranks_have_one_workers_bits)),
        },
        "reference": {
            "float32 parity": _families(_cases(test_parity_families.test_equals_transformers)),
            "bits": _families(_cases(test_family_bits.test_rows_depend_on_their_sequence_alone)),
            "GGUF": _families(gguf),
            "TP 2": _families(_cases(test_cpu_ranks.test_ranks_of_the_reference)),
        },
        "triton": {"float32 parity": _families(ON_DEVICE)},
    }


def _cases(test: Callable[..., Any]) -> list[str]:
    """Returns the values of the test's parameter `case`."""
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize" and mark.args[0] == "case":
            return list(mark.args[1])
    raise ValueError(f"{test.__name__} has no parameter `case`")


def _families(cases: Iterable[str]) -> Counter[str]:
    return Counter((CASES.get(case) or test_gguf_families.OWN[case])[0] for case in cases)
