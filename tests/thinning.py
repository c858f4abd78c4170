"""A part of each test's cases, where all of them take too long, and which files come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

SHARES = {
    "tests/deploy/helm/test_chart.py::test_every_object_fits_kubernetes_own_schema": 1 / 4,
    "tests/engine/handlers/test_pooling.py::test_any_order_of_events": 1 / 3,
    "tests/engine/live/test_live.py::test_nobody_decides_otherwise": 1 / 2,
    "tests/engine/metrics/test_counts.py::test_counts_are_what_the_peers_saw": 1 / 3,
    "tests/engine/policies/test_fairness.py": 1 / 12,
    "tests/engine/policies/test_starvation.py::test_the_largest_is_served": 1 / 3,
    "tests/engine/record/test_recording.py::test_a_replay_decides_alike": 1 / 3,
    "tests/engine/record/test_snapshot.py::test_a_restored_core_goes_on_like_the_original": 1 / 3,
    "tests/engine/speculation/test_regret.py::test_one_stream": 1 / 3,
    "tests/engine/speculation/test_regret.py::test_so_do_many": 1 / 4,
    "tests/gateway/http/test_sockets.py::test_failure_before_the_first_token": 1 / 3,
    "tests/gateway/keys/test_access.py::test_every_route_needs_a_key_that_is_known": 1 / 6,
    "tests/gateway/keys/test_access.py::test_no_spelling_of_a_path_goes_round_it": 1 / 6,
    "tests/kernels/cpu/test_decoder.py::test_long_contexts": 1 / 4,
    "tests/kernels/cpu/test_decoder.py::test_shapes": 1 / 3,
    "tests/kernels/cpu/test_decoder_rows.py": 1 / 6,
    "tests/kernels/cpu/test_exactness.py::test_whole_numbers_are_exact": 1 / 3,
    "tests/kernels/cpu/test_given_rows.py::test_against_float64": 1 / 3,
    "tests/kernels/cpu/test_given_rows.py::test_any_company_any_chunks": 1 / 8,
    "tests/kernels/cpu/test_given_rows.py::test_in_other_caches": 1 / 3,
    "tests/kernels/cpu/test_mechanisms.py::test_any_company_any_chunks": 1 / 6,
    "tests/kernels/cpu/test_mechanisms.py::test_in_float32": 1 / 3,
    "tests/kernels/cpu/test_mechanisms.py::test_over_several_splits": 1 / 6,
    "tests/kernels/cpu/test_packing.py": 1 / 3,
    "tests/kernels/cpu/test_product.py::test_4097_rows": 1 / 4,
    "tests/kernels/cpu/test_product.py::test_bias_and_order": 1 / 3,
    "tests/kernels/cpu/test_product.py::test_shapes": 1 / 4,
    "tests/kernels/cpu/test_product.py::test_tiny_and_huge_values": 1 / 3,
    "tests/kernels/cpu/test_recurrent.py": 1 / 3,
    "tests/kernels/cpu/test_rows.py::test_alone_and_in_company": 1 / 3,
    "tests/kernels/cpu/test_rows.py::test_poison": 1 / 4,
    "tests/kernels/cpu/test_sampler.py::test_log_probabilities": 1 / 3,
    "tests/kernels/test_attention.py": 1 / 4,
    "tests/kernels/test_row_invariance.py": 1 / 4,
    "tests/kernels/triton/test_quick_interpreter.py": 1,
    "tests/kernels/triton/test_quick_triton.py": 1,
    "tests/system/page/test_axe.py": 1 / 4,
    "tests/system/page/test_pictures.py::test_axe_finds": 1 / 4,
    "tests/system/test_beam_search.py::test_beams_are_those_of_transformers": 1 / 3,
    "tests/system/test_blame.py::test_engine_cores_that_stand_still_accuse_nobody": 1 / 2,
    "tests/system/test_invariance.py": 1 / 40,
    "tests/system/test_matrix.py::test_alone_and_again": 1 / 8,
    "tests/system/test_matrix.py::test_crowded": 1 / 8,
    "tests/system/test_media_matrix.py": 1 / 44,
    "tests/system/test_ranks.py::test_several_ranks_answer_as_one_worker_does": 1 / 2,
    "tests/system/test_readiness.py::test_a_frozen_process_is_noticed": 1 / 4,
    "tests/system/test_recovery.py::test_a_stream_goes_on_when_a_process_is_killed_under_it": 1 / 2,
    "tests/system/test_recurrent.py::test_no_bit_depends_on_the_way_of_running": 1 / 4,
    "tests/system/test_several_engines.py::test_streams_are_the_same_whichever_process": 1 / 6,
    "tests/system/test_structured_outputs.py::test_a_json_schema_outlives_a_killed_process": 1 / 2,
    "tests/system/test_supervisor.py::test_a_signal_while_it_starts_leaves": 1 / 2,
    "tests/worker/adapters/test_families.py::test_bits_and_the_reference": 1 / 4,
    "tests/worker/cuda/test_families_on_device.py": 1 / 24,
    "tests/worker/cuda/test_float_gguf.py::test_answers_are_those_of_safetensors": 1 / 6,
    "tests/worker/cuda/test_on_simulated_gpu.py::test_every_feature": 1 / 2,
    "tests/worker/cuda/test_recurrent_on_device.py::test_bits_are_a_sequences_own": 1 / 6,
    "tests/worker/cuda/test_recurrent_on_device.py::test_logits_are_the_references": 1 / 6,
    "tests/worker/cuda/test_recurrent_on_device.py::test_two_ranks": 1 / 6,
    "tests/worker/forward/test_bit_identity.py::test_alone_or_disturbed": 1 / 2,
    "tests/worker/forward/test_bit_identity.py::test_default_model_among_others": 1 / 2,
    "tests/worker/forward/test_cpu_bit_identity.py::test_every_bit_of_logprobs": 1 / 12,
    "tests/worker/forward/test_cpu_instruction_sets.py": 1 / 4,
    "tests/worker/models/test_family_bits.py::test_on_the_cpu_kernels": 1 / 3,
    "tests/worker/models/test_family_bits.py::test_rows_depend": 1 / 3,
    "tests/worker/models/test_recurrent_on_cpu.py::test_rows_of_recurrent": 1 / 3,
    "tests/worker/models/test_transformers_bits.py": 1 / 6,
    "tests/worker/models/test_transformers_parity.py": 1 / 6,
    "tests/worker/parallel/test_cpu_ranks.py::test_ranks_of_the_reference": 1 / 6,
    "tests/worker/parallel/test_cpu_ranks.py::test_two_ranks_have_one_workers_bits": 1 / 3,
    "tests/worker/parallel/test_cpu_ranks_files.py::test_quantised_checkpoints": 1 / 2,
    "tests/worker/sampler/test_adjustments.py::test_distribution_with_penalties": 1 / 3,
    "tests/worker/vision/test_vision_files.py::test_a_naming_changes_nothing": 1 / 2,
    "tests/worker/vision/test_vision_ranks.py": 1 / 2,
}
"""The share of the cases that runs without --long, by the beginning of a test's name. They take
seconds each, or are many, and another case of the same test has most of what each finds."""

INTERPRETED = 1 / 4
"""The share of the tests of interpreted Triton kernels."""
SANITIZED = 1 / 8
"""And of the CPU kernels' tests under the sanitizers."""

every = False
"""Whether all of everything runs: --long."""


def part(count: int, share: float) -> int:
    """How many of so many examples, steps or rounds inside of one test run: all with --long, else a
    share."""
    return count if every else max(1, round(count * share))


LONGEST = (
    "tests/kernels/cpu/test_arm.py",
    "tests/kernels/triton/test_compile.py",
    "tests/system/test_ranks.py",
    "tests/system/test_docs.py",
    "tests/system/test_chaos.py",
    "tests/system/test_batches.py",
    "tests/deploy/test_haproxy_system.py",
    "tests/system/test_adapters.py",
    "tests/system/test_recurrent.py",
    "tests/grammars/test_grammars_default.py",
    "tests/system/test_library.py",
    "tests/system/test_invariance.py",
    "tests/system/test_supervisor.py",
    "tests/system/test_several_engines.py",
    "tests/system/test_drain.py",
    "tests/system/test_speculation_served.py",
    "tests/system/page/test_chat.py",
    "tests/system/page/test_axe.py",
    "tests/system/page/test_pictures.py",
    "tests/system/page/test_trouble.py",
    "tests/system/page/test_api_page.py",
    "tests/system/page/test_live_view.py",
    "tests/worker/models",
    "tests/worker/cuda",
    "tests/worker/forward",
    "tests/kernels/triton",
    "tests/system/clients",
    "tests/kernels/cpu",
    "tests/system",
    "tests/worker",
    "tests/deploy",
    "tests/loadtest",
    "tests/engine",
    "tests/gateway",
)
"""Files and folders whose tests take longest. They are handed out first: of several processes none
gets such a file when the others are done. The clients' come when what installs them, beside the
tests, has ended or nearly so."""

GOLDEN = 0.6180339887
"""Multiples of it, modulo 1, lie evenly: what they choose follows no period of the parameters."""

Values = frozenset[tuple[str, int]]
"""The values of a case: each of its test's parameters with its value's identity."""
MANY = 14
"""Values of one parameter that are points of a range, or shapes: a share of them will do."""


def by_test(items: Iterable[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """The cases of each test, in their order."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    yield from tests.values()


def thinned(items: Iterable[pytest.Item], share: Callable[[str], float]) -> Iterator[pytest.Item]:
    """What a share of each test's cases leaves out. share: of a test, by its name. Cases that are
    long anyway are neither counted nor chosen."""
    for cases in by_test(item for item in items if not item.get_closest_marker("long")):
        wanted = share(cases[0].nodeid)
        if wanted < 1:
            chosen = choose([values_of(case) for case in cases], wanted)
            yield from (case for number, case in enumerate(cases) if number not in chosen)


def share_of(nodeid: str) -> float:
    """The share of a test's cases that runs without --long."""
    return next((share for begin, share in SHARES.items() if nodeid.startswith(begin)), 1.0)


def interpreted_share(nodeid: str) -> float:
    """The share of the cases that runs without --long, of a test of interpreted kernels."""
    named = (share for begin, share in SHARES.items() if nodeid.startswith(begin))
    return next(named, INTERPRETED)


def place(item: pytest.Item) -> int:
    """Where its file stands among all that are handed out."""
    found = (number for number, begin in enumerate(LONGEST) if item.nodeid.startswith(begin))
    return next(found, len(LONGEST))


def choose(cases: Sequence[Values], share: float) -> set[int]:
    """The numbers of the cases that run: the first, and, of a test with several parameters, as few
    as bring each value of each at least once, unless it has MANY; where these are less than the
    share of all, others, spread evenly."""
    chosen = {0}
    spread = sorted(range(len(cases)), key=lambda number: number * GOLDEN % 1)
    missing = values_to_meet(cases) - cases[0]
    while missing:
        most = max(spread, key=lambda number: len(cases[number] & missing))
        chosen.add(most)
        missing -= cases[most]
    for number in spread:
        if len(chosen) >= share * len(cases):
            break
        chosen.add(number)
    return chosen


def values_to_meet(cases: Sequence[Values]) -> Values:
    """The values of parameters that vary apart. Names that are given values together count as
    one."""
    courses: dict[str, list[int]] = {}
    for values in cases:
        for name, value in sorted(values):
            courses.setdefault(name, []).append(value)
    distinct = {name: list(dict.fromkeys(course)) for name, course in courses.items()}
    varying = {
        tuple(map(distinct[name].index, course))
        for name, course in courses.items()
        if len(distinct[name]) > 1
    }
    if len(varying) < 2:
        return frozenset()
    return frozenset(
        (name, value) for name, values in distinct.items() if len(values) < MANY for value in values
    )


def values_of(item: pytest.Item) -> Values:
    callspec = getattr(item, "callspec", None)
    return (
        frozenset((name, id(value)) for name, value in callspec.params.items())
        if callspec
        else frozenset()
    )
