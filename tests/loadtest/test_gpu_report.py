"""Tables, targets and the merging of parts, on figures made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.gpu import __main__ as command
from loadtest.gpu.figures import TARGETS, limits, share
from loadtest.gpu.job import DONE, FAILED, OUT_OF_TIME, part_file, write_json
from loadtest.gpu.parts import PARTS, VISITS, Part, Visit
from loadtest.gpu.parts.end_to_end import late_compilations, step_counters
from loadtest.gpu.parts.kernel_tests import take
from loadtest.gpu.report import to_markdown

INSTALLING = 60.0
RUN = {"model": "Llama-3.1-8B", "what": "run", "requests": 64, "prompt_tokens": 30_000}


def part(name: str, *rows: dict[str, Any], notes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "part": name,
        "status": DONE,
        "reason": "",
        "seconds": 12.0,
        "notes": list(notes),
        "rows": list(rows),
    }


def decode(batch: int, seconds: float, mode: str = "default") -> dict[str, Any]:
    return {
        "what": "decode",
        "model": "Llama-3.1-8B",
        "mode": mode,
        "batch": batch,
        "context": 1024,
        "seconds": seconds,
        "tokens": batch,
        "bytes": 16_000_000_000,
    }


def mixed(mode: str, padded: int | None, seconds: float) -> dict[str, Any]:
    return {
        "what": "mixed",
        "model": "Llama-3.1-8B",
        "mode": mode,
        "decodes": 64,
        "chunk": 192,
        "context": 1034,
        "before": 1920,
        "padded": padded,
        "seconds": seconds,
        "tokens": 256,
        "bytes": 24_000_000_000,
        "flops": 4e12,
    }


def document() -> dict[str, Any]:
    """The document of a machine that copies 4 TB/s and multiplies at 800 TFLOP/s."""
    kernel = {
        "op": "decode attention",
        "shape": "64 x 8192",
        "bytes": 2_000_000_000,
        "flops": 0.0,
        "torch": "scaled_dot_product_attention",
        "seconds": 0.00055,
        "graph": True,
        "torch_seconds": 0.0011,
    }
    idle = {
        "what": "idle",
        "model": "Llama-3.1-8B",
        "mode": "default",
        "batch": 64,
        "steps": 16,
        "span": 0.1,
        "busy": 0.096,
        "between": 0.001,
        "step_seconds": 0.0062,
    }
    prefill = {
        "what": "prefill",
        "model": "Llama-3.1-8B",
        "mode": "default",
        "sequences": 8,
        "length": 1024,
        "tokens": 8192,
        "seconds": 0.2,
        "flops": 112e12,
    }
    core = {"steps": 1000, "plan": 0.4, "apply": 0.6, "compute": 9.9, "dispatch": 0.1}
    return {
        "command": "loadtest/gpu/run.sh WHEELS",
        "started": "2026-11-20T10:00:00+00:00",
        "machine": {"cpu": "a CPU", "cores": 16.0, "memory_bytes": 2**37, "python": "3.12.3"},
        "dry": False,
        "device": "NVIDIA H200, 580.1, 143771 MiB",
        "versions": {"torch": "2.11.0+cu130", "triton": "3.6.0", "transformers": None},
        "parts": {
            "limits": part(
                "limits",
                {"name": "copy", "size": 2**32, "per_s": 3.8e12},
                {"name": "read", "size": 2**32, "per_s": 4e12},
                {"name": "matrix", "size": 4096, "per_s": 7e14},
                {"name": "matrix", "size": 8192, "per_s": 8e14},
            ),
            "kernel-tests": part(
                "kernel-tests",
                {
                    "what": "tests",
                    "tests": ["tests/kernels/triton"],
                    "ended": False,
                    "failed_tests": ["tests/kernels/triton/test_rows.py::test_a"],
                    "counts": {"failed": 1, "passed": 41},
                },
            ),
            "works": part("works", {"what": "tokens", "model": "tiny", "answers": 9, "unlike": 1}),
            "kernels-attention": part("kernels-attention", kernel),
            "steps-0": part("steps-0", decode(1, 0.0045), decode(64, 0.005), prefill, idle),
            "mixed-0": part(
                "mixed-0",
                mixed("default", 256, 0.0075),
                mixed("default, no graphs", None, 0.012),
            ),
            "end-to-end-0": part(
                "end-to-end-0",
                {**RUN, "system": "penstock", "output_tokens": 36_000, "seconds": 10.0}
                | {"engine_core": core},
            ),
            "transformers-0": part(
                "transformers-0",
                {**RUN, "system": "transformers generate", "output_tokens": 18_000}
                | {"seconds": 15.0, "whole": False},
                notes=("continuous batching failed: RuntimeError: why",),
            ),
        },
    }


def test_the_best_of_what_was_measured_is_the_limit() -> None:
    limit = limits(document())
    assert limit is not None
    assert (limit.memory, limit.matrix) == (4e12, 8e14)
    assert share(decode(1, 0.005), limit) == pytest.approx(0.8)
    assert share({"seconds": 0.2, "flops": 112e12}, limit) == pytest.approx(0.7)
    assert share({"seconds": 0.2}, limit) is None
    assert limits({"parts": {}}) is None


def test_targets_are_held_against_what_was_measured() -> None:
    values = [target.measured(document()) for target in TARGETS]
    assert values == pytest.approx([16 / 18, 0.8, 0.7, 0.5 / 0.55, 0.01])
    verdicts = [target.verdict(value) for target, value in zip(TARGETS, values, strict=True)]
    assert verdicts == ["met", "missed", "met", "met", "met"]
    nothing = {**document(), "parts": {}}
    assert {target.verdict(target.measured(nothing)) for target in TARGETS} == {"not measured"}


def test_the_report_has_every_figure() -> None:
    text = to_markdown(document())
    for line in (
        "Device: NVIDIA H200, 580.1, 143771 MiB",
        "torch 2.11.0+cu130, triton 3.6.0\n",
        "41 passed; the time was over before the last.",
        "- failed: `tests/kernels/triton/test_rows.py::test_a`",
        "tiny: 8 of 9 answers are the reference's.",
        "They are **not like for like**",
        "Runs of transformers generate were cut short and give no rate.",
        "| decode, Llama-3.1-8B, batch 64: of the memory limit",
        "- transformers-0: continuous batching failed: RuntimeError: why",
    ):
        assert line in text, line
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["matrix", "8,192", "800.0 TFLOP/s, bfloat16"] in cells
    # 550 µs of the least 500; torch took 1,100.
    own = ["550.0", "90.9 %", "1,100.0", "2.00", "scaled_dot_product_attention"]
    assert ["decode attention, 64 x 8192", *own] in cells
    step = ["64", "1,024", "5.00", "12,800", "80.0 %"]
    assert ["Llama-3.1-8B, default", *step] in cells
    assert ["Llama-3.1-8B, default", "8 x 1,024", "40,960", "560.0", "70.0 %"] in cells
    assert ["Llama-3.1-8B, batch 64", "6.000", "6.200", "4.0 %", "1.0 %"] in cells
    step = ["64", "192", "256", "7.50", "34,133", "80.0 %", "1.60"]
    assert ["Llama-3.1-8B, default", *step] in cells
    step = ["64", "192", "–", "12.00", "21,333", "50.0 %", "–"]
    assert ["Llama-3.1-8B, default, no graphs", *step] in cells
    assert ["Llama-3.1-8B, penstock", "64", "10.0", "3,600", "6,600"] in cells
    assert "transformers generate *" not in text
    core = ["1,000", "10.00", "0.400", "0.600", "10.0 %", "1.0 %"]
    assert ["Llama-3.1-8B, 64 requests", *core] in cells


def test_a_report_of_nothing_says_what_ended_how() -> None:
    empty = {**document(), "parts": {}}
    empty["parts"]["limits"] = {**part("limits"), "status": FAILED, "reason": "out of memory"}
    text = to_markdown(empty)
    assert "out of memory" in text
    assert "## Kernels" not in text


def test_how_a_part_ended_is_said_where_it_could_not(tmp_path: Path) -> None:
    one = PARTS[0]
    write_json(part_file(tmp_path, one.name), {**part(one.name, {"a": 1}), "status": "begun"})
    assert command.settle(one, tmp_path, -9, over_time=True).startswith(OUT_OF_TIME)
    kept = json.loads(part_file(tmp_path, one.name).read_text())
    assert (kept["status"], kept["rows"]) == (OUT_OF_TIME, [{"a": 1}])
    # One that never wrote anything.
    assert "status 1" in command.settle(PARTS[1], tmp_path, 1, over_time=False)
    merged = command.merged(tmp_path, list(PARTS))
    assert [each["status"] for each in merged.values()][:3] == [OUT_OF_TIME, FAILED, "not begun"]


def test_parts_share_the_time() -> None:
    one = Part("a", "module", 60.0)
    assert (
        command.allowance(one, left=500.0, later=100.0) == 90.0
    )  # no more than half as much again
    assert command.allowance(one, left=170.0, later=100.0) == 70.0
    assert command.allowance(one, left=100.0, later=100.0) == 60.0
    assert command.allowance(one, left=20.0, later=100.0) == 20.0
    assert command.allowance(one, left=-1.0, later=0.0) == 0.0


def test_a_visit_is_over_in_forty_minutes_and_says_first_whether_it_works() -> None:
    seconds = VISITS["whole"].seconds
    assert sum(each.seconds for each in PARTS) <= seconds - command.REPORT_SECONDS - INSTALLING
    assert seconds < 40 * 60
    assert (PARTS[0].name, PARTS[0].seconds) == ("works", 180)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_fails_in_the_middle_takes_nothing_from_the_others(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next visit measures that part only."""
    parts = tuple(Part(name, "module", 60.0) for name in ("a", "b", "c"))
    ran: list[str] = []

    def run(part_: Part, flags: Any, seconds: float) -> str:
        ran.append(part_.name)
        status = FAILED if part_ == parts[failing] and len(ran) <= 3 else DONE
        write_json(part_file(tmp_path, part_.name), {**part(part_.name, {}), "status": status})
        assert (tmp_path / "results.json").exists() == (len(ran) > 1)  # Written after each.
        return status

    monkeypatch.setitem(VISITS, "works", Visit(600.0, parts))
    monkeypatch.setattr(command, "run_part", run)
    monkeypatch.setattr(command, "leave_at_signals", lambda: None)
    flags = ["x", "--output", str(tmp_path), "--work", str(tmp_path), "--seconds", "570", "--dry"]
    monkeypatch.setattr(sys, "argv", flags)
    assert command.main() == 1
    assert ran == ["a", "b", "c"]
    monkeypatch.setattr(sys, "argv", [*flags, "--go-on"])
    assert command.main() == 0
    assert ran[3:] == [parts[failing].name]
    assert list(json.loads((tmp_path / "results.json").read_text())["parts"]) == ["a", "b", "c"]


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        """A process that is held by a driver that answers no more."""

        pid = 2**22 + 1  # No process has it.

        def wait(self, seconds: float | None = None) -> int:
            assert seconds is not None, "it would never end"
            raise subprocess.TimeoutExpired("", seconds)

        def poll(self) -> None:
            return None

    command.end_group(Held())  # type: ignore[arg-type]


def test_the_engine_cores_counters_are_read() -> None:
    page = """
# HELP penstock:steps_total Steps applied.
penstock:steps_total 12.0
penstock:step_part_seconds_total{part="plan"} 0.5
penstock:step_part_seconds_total{model_name="m",part="apply"} 0.25
penstock:step_part_seconds_total{part="compute"} 1e+01
penstock:step_part_seconds_total{part="dispatch"} 2.0
"""
    times = step_counters(page)
    assert times == {"steps": 12, "plan": 0.5, "apply": 0.25, "compute": 10.0, "dispatch": 2.0}
    with pytest.raises(LookupError, match="no counters"):
        step_counters("")


def test_late_compilations_are_read() -> None:
    page = "penstock:worker_late_compilations_total 3.0\n"
    assert late_compilations(page) == 3
    with pytest.raises(LookupError, match="count compilations"):
        late_compilations("")


def test_pytests_lines_are_counted_once() -> None:
    from collections import Counter

    outcomes_, failed = Counter(), {}
    for line in (
        "tests/a.py::test_b[x-1] PASSED                                  [ 10%]",
        "[gw3] [ 20%] FAILED tests/a.py::test_c ",
        "FAILED tests/a.py::test_c - AssertionError: assert 'PASSED'",
        "tests/a.py::test_d SKIPPED (needs two devices)",
        "E   AssertionError",
    ):
        take(line, outcomes_, failed)
    assert outcomes_ == {"PASSED": 1, "FAILED": 1, "SKIPPED": 1}
    assert list(failed) == ["tests/a.py::test_c"]
