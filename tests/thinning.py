"""A part of each test's cases, spread evenly over them, where all of them take too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

SHARES = {
    "tests/engine/policies/test_fairness.py": 1 / 3,
    "tests/system/page/test_axe.py": 1 / 2,
    "tests/system/test_invariance.py": 1 / 6,
    "tests/system/test_matrix.py": 1 / 2,
    "tests/system/test_ranks.py::test_several_ranks_answer_as_one_worker_does": 1 / 2,
    "tests/system/test_readiness.py::test_a_frozen_process_is_noticed": 1 / 2,
    "tests/system/test_structured_outputs.py::test_a_json_schema_outlives_a_killed_process": 1 / 2,
    "tests/worker/forward/test_bit_identity.py::test_default_model_among_others": 1 / 2,
    "tests/worker/forward/test_cpu_bit_identity.py::test_every_bit_of_logprobs": 1 / 3,
    "tests/worker/forward/test_cpu_instruction_sets.py": 1 / 2,
    "tests/worker/models/test_family_bits.py::test_on_the_cpu_kernels": 1 / 3,
    "tests/worker/parallel/test_cpu_ranks.py::test_ranks_of_the_reference": 1 / 6,
    "tests/worker/parallel/test_cpu_ranks.py::test_two_ranks_have_one_workers_bits": 1 / 3,
    "tests/worker/parallel/test_cpu_ranks_files.py::test_quantised_checkpoints": 1 / 2,
    "tests/worker/sampler/test_adjustments.py::test_distribution_with_penalties": 1 / 3,
}
"""Of the cases of tests whose name begins so: the share that runs without --long. They start whole
systems or compute whole models, and another case of the same test has most of what each finds."""

GOLDEN = 0.6180339887
"""Multiples of it, modulo 1, lie evenly: what they choose follows no period of the parameters."""


def numbered(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, int]]:
    """Each with its number among its test's cases, from 0."""
    cases: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        yield item, cases[name]
        cases[name] += 1


def share_of(nodeid: str) -> float:
    """The share of a test's cases that runs without --long."""
    return next((share for begin, share in SHARES.items() if nodeid.startswith(begin)), 1.0)


def in_share(case: int, share: float) -> bool:
    """Whether a case is of that share of all. The first one always is."""
    return case * GOLDEN % 1 < share
