"""A step's profile: kernels by name, and what none of them explains; steps at an exact context."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from loadtest.gpu.device_profile import (
    NAME_LENGTH,
    NAMED,
    OTHERS,
    Interval,
    device_time,
    kernel_times,
    shortened,
)
from loadtest.gpu.extent import GPU
from loadtest.gpu.figures import ALL, NOTHING, step_kernels
from loadtest.gpu.parts.steps import begins_at
from loadtest.gpu.report import to_markdown
from loadtest.gpu.stepper import Stepper
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_kernels.triton.tiles import KEY_SPLIT
from tests.loadtest.test_gpu_report import document, part

# Two steps of two kernels: a gap of 1 within each, of 4 between them; one kernel overlaps.
STEPS = [
    Interval("_linear", 15.0, 17.0),
    Interval("_linear", 0.0, 2.0),
    Interval("attend", 3.0, 6.0),
    Interval("_rope_write", 4.0, 5.0),
    Interval("attend", 10.0, 14.0),
]


def test_device_time_takes_overlaps_once_and_the_longest_gaps_as_between_steps() -> None:
    assert device_time(STEPS, steps=2) == {"span": 17.0, "busy": 11.0, "between": 4.0}
    assert device_time([Interval("a", 1.0, 2.0)], steps=1)["between"] == 0.0
    with pytest.raises(ValueError, match="no work of the device"):
        device_time([], steps=2)


def test_kernels_are_summed_by_name() -> None:
    assert kernel_times(STEPS, steps=2) == [
        {"name": "attend", "seconds": 3.5, "calls": 1.0},
        {"name": "_linear", "seconds": 2.0, "calls": 1.0},
        {"name": "_rope_write", "seconds": 0.5, "calls": 0.5},
    ]


def test_many_names_share_a_last_row_and_none_is_lost() -> None:
    many = [Interval(f"k{n}", 10.0 * n, 10.0 * n + n + 1) for n in range(NAMED + 3)]
    rows = kernel_times(many, steps=1)
    assert len(rows) == NAMED + 1
    assert rows[-1] == {"name": OTHERS, "seconds": 1.0 + 2.0 + 3.0, "calls": 3.0}
    assert sum(row["seconds"] for row in rows) == sum(each.end - each.start for each in many)


def test_names_lose_their_arguments_and_stay_in_a_table() -> None:
    assert shortened("void nvjet_tst_128x64(Params const&, int)") == "nvjet_tst_128x64"
    inner = "void at::native::(anonymous namespace)::cut<4>(char const*, float*)"
    assert shortened(inner) == "at::native::(anonymous namespace)::cut<4>"
    assert shortened("Memcpy HtoD") == "Memcpy HtoD"
    assert shortened("(odd)") == "(odd)"
    long = shortened("k" * 5000)
    assert len(long) == NAME_LENGTH
    assert long.endswith("…")


def profiled_row() -> dict[str, Any]:
    return {
        "what": "idle",
        "model": "Llama-3.1-8B",
        "mode": "default",
        "batch": 256,
        "context": 1052,
        "steps": 2,
        "step_seconds": 8.0,
        **device_time(STEPS, 2),
        "kernels": kernel_times(STEPS, 2),
    }


def test_what_no_kernel_explains_is_said() -> None:
    rows = {row["name"]: row for row in step_kernels(profiled_row())}
    assert rows["attend"]["share"] == 3.5 / 8
    assert (rows[ALL]["seconds"], rows[ALL]["calls"]) == (6.0, 2.5)
    # The step takes 8 s without the profiler, and something runs in 5.5 of them.
    assert rows[NOTHING]["seconds"] == 2.5
    assert list(step_kernels({"what": "idle"})) == []  # Of a profile that kept no names.
    made = document()
    made["parts"]["steps-0-default"] = part("steps-0-default", profiled_row())
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in to_markdown(made).splitlines()]
    where = "Llama-3.1-8B, default, 256 at 1,052"
    assert [where, "attend", "1", "3500.000", "43.8 %"] in cells
    assert [where, NOTHING, "0", "2500.000", "31.2 %"] in cells


class Recorder:
    """A runner that computes nothing, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def begin(self, plan: Plan) -> Future[Result]:
        self.plans.append(plan)
        done: Future[Result] = Future()
        done.set_result(Result(plan.step, slots=[]))
        return done


def test_resumed_sequences_compute_one_token_over_the_blocks_of_those_before() -> None:
    runner = Recorder()
    stepper = Stepper(runner, vocab=100, block=16, room=60, budget=64)
    stepper.prefill(range(3), 40)
    stepper.forget()
    stepper.resume(range(2), 25)
    stepper.decode(2, 1)
    first = {each.slot: each for plan in runner.plans[:-2] for each in plan.admitted}
    resumed, after = runner.plans[-2:]
    assert resumed.released == [0, 1, 2]
    assert [(w.slot, w.start, w.count) for w in resumed.work] == [(0, 24, 1), (1, 24, 1)]
    for sequence in resumed.admitted:
        assert len(sequence.tokens) == 25
        assert sequence.blocks == first[sequence.slot].blocks
    assert [(w.slot, w.start, w.count) for w in after.work] == [(0, 25, 1), (1, 25, 1)]


def test_contexts_are_no_multiples_of_the_split() -> None:
    """In any of the steps that are timed."""
    for context in GPU.contexts:
        begin = begins_at(GPU, context) + GPU.warm_steps
        timed = range(begin, begin + GPU.decode_steps)
        assert context == timed[len(timed) // 2]
        assert not any(each % KEY_SPLIT == 0 for each in timed)
    assert any(context % KEY_SPLIT for _, context in GPU.decode)
