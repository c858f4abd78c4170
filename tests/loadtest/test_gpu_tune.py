"""The tuning of tile sizes: its whole command without a GPU, and each way a candidate can end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loadtest.gpu.extent import DRY_TILES
from loadtest.gpu.job import part_file
from loadtest.gpu.parts.cases import Bench, Case
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.timing import Timer
from loadtest.gpu.tune import NAMES, advice
from loadtest.gpu.tune.ahead import compiled, take
from loadtest.gpu.tune.processes import Lines, lines_file
from loadtest.gpu.tune.products import GGUFTiles, parts_of
from loadtest.gpu.tune.report import to_markdown
from loadtest.gpu.tune.settings import Candidate, Setting, ordered
from loadtest.gpu.tune.supervise import gathered
from loadtest.gpu.tune.sweep import Sweep, measure_limits
from loadtest.gpu.tune.table import settings

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
WANTED = torch.arange(8.0).view(2, 4)


def environment(**changes: str) -> dict[str, str]:
    packages = [str(ROOT / each) for each in ("shared", "services", "kernels")]
    path = os.pathsep.join([*packages, str(ROOT)])
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**inherited, "PYTHONPATH": path, **changes}


@dataclass(frozen=True)
class Fake:
    size: int
    warps: int


def one_value_wrong() -> Tensor:
    return WANTED + torch.tensor([0.0, 0.0, 0.0, 2.0])


def not_a_number() -> Tensor:
    return WANTED * float("nan")


def does_not_fit() -> Tensor:
    raise RuntimeError("out of resource: shared memory")


def setting(results: dict[int, Callable[[], Tensor]]) -> Setting:
    """results: of other sizes than the present one."""

    def make(device: torch.device) -> Bench:
        return Bench(lambda tiles: results.get(tiles.size, WANTED.clone), WANTED.clone)

    return Setting(
        "SIZE",
        "_kernel",
        Fake(4, 1),
        {"size": (1, 2, 4, 8, 16), "warps": (1, 2)},
        (Case("2 x 4", make, size=64.0), Case("again", make, size=64.0)),
    )


def everything(results: dict[int, Callable[[], Tensor]]) -> list[Candidate]:
    return ordered([("fake", setting(results))], 5)


def run(
    candidates: list[Candidate],
    lines: Lines,
    found: Callable[[int], dict[str, Any] | None] = lambda number: {},
    seconds: float = 200.0,
) -> dict[int, list[dict[str, Any]]]:
    """The rows that it led to, by the candidate's size."""
    Sweep(lines, CPU, Timer(CPU, 1), found, time.monotonic() + seconds).run(candidates)
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in lines.rows:
        if "status" in row and row["tiles"]["warps"] == 1:
            rows.setdefault(row["tiles"]["size"], []).append(row)
    return rows


def test_candidates_are_held_against_the_machines_own_limits(tmp_path: Path) -> None:
    measure_limits(tmp_path, dry=True)
    found = json.loads(part_file(tmp_path, "limits").read_text())
    assert {row["name"] for row in found["rows"]} == {"copy", "read", "matrix"}


@pytest.mark.slow
@pytest.mark.long
def test_the_whole_command_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest.gpu.tune", str(tmp_path), "--dry"]
    done = subprocess.run(
        [*command, "--seconds", "100"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    log = (tmp_path / "tune.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    document = json.loads((tmp_path / "tune.json").read_text())
    assert document["left_out"] == []
    assert {row["family"] for row in document["rows"]} == set(NAMES)
    assert {row["status"] for row in document["rows"]} == {"timed"}, log
    present = {row["setting"] for row in document["rows"] if row["present"]}
    others = {row["setting"] for row in document["rows"] if not row["present"]}
    assert present == others
    text = (tmp_path / "tune.md").read_text()
    assert all(f"## {name}\n" in text for name in present)


def test_candidates_are_compiled_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest.gpu.tune.ahead", "--kernels", "rms-norm"]
    take(tmp_path, 0)  # As another process would have.
    done = subprocess.run(
        [*command, "--work", str(tmp_path), "--arch", "90", "--seconds", "100"],
        cwd=ROOT,
        env=environment(TRITON_CACHE_DIR=str(tmp_path / "cache")),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert compiled(tmp_path, 0) is None
    for number in range(1, 5):
        found = compiled(tmp_path, number)
        assert found is not None
        assert found["reason"] == ""
        assert found["kernels"]["_rms_norm"]["registers"] > 0
    assert list((tmp_path / "cache").rglob("_rms_norm.cubin"))


def test_candidates_come_in_the_order_of_what_matters() -> None:
    often, seldom = replace(setting({}), turns=2), replace(setting({}), choices={"size": (2, 4, 8)})
    listed = ordered([("a", often), ("b", seldom)], 9)
    assert [each.number for each in listed] == list(range(12))
    assert [each.kernels for each in listed] == list("abaabaabaaaa")
    assert [each.present for each in listed] == [True, True, *[False] * 10]
    # Steps of one field before those of two, the smaller first.
    tiles = [each.tiles for each in listed if each.kernels == "a"]
    assert {*tiles[1:4]} == {Fake(2, 1), Fake(8, 1), Fake(4, 2)}
    assert {*tiles[4:6]} == {Fake(1, 1), Fake(16, 1)}
    assert all(each.warps == 2 for each in tiles[6:])


def test_a_value_that_is_not_among_the_choices_is_an_error() -> None:
    with pytest.raises(ValueError, match="size is 5"):
        replace(setting({}), present=Fake(5, 1)).candidates(3)


def test_what_a_candidate_does_is_a_row_and_never_the_end(tmp_path: Path) -> None:
    candidates = everything({2: one_value_wrong, 8: does_not_fit, 1: not_a_number})
    rows = run(candidates, Lines(lines_file(tmp_path)))
    assert [row["status"] for row in rows[4]] == ["timed", "timed"]
    assert [(row["status"], row["shape"]) for row in rows[2]] == [("wrong", "2 x 4")]
    assert [row["status"] for row in rows[8]] == ["failed"]
    assert "shared memory" in rows[8][0]["reason"]
    assert [row["status"] for row in rows[1]] == ["wrong"]
    assert Lines(lines_file(tmp_path)).done == {each.number for each in candidates}


def test_a_present_choice_that_is_wrong_takes_its_candidates_along(tmp_path: Path) -> None:
    rows = run(everything({4: one_value_wrong}), Lines(lines_file(tmp_path)))
    assert {row["status"] for some in rows.values() for row in some} == {"wrong"}
    # Not one of them is blamed for it, nor is it tried again.
    assert rows.keys() == {4}
    assert len(rows[4]) == 1


def test_a_present_choice_that_ends_the_process_does_so_once(tmp_path: Path) -> None:
    candidates = everything({})
    before = Lines(lines_file(tmp_path))
    before.add(trying=0)  # And then it ended.
    rows = run(candidates, Lines(lines_file(tmp_path)))
    assert rows.keys() == {4}
    assert [(row["number"], row["status"]) for row in rows[4]] == [(0, "failed")]


def test_a_present_choice_that_ends_a_later_process_is_to_blame(tmp_path: Path) -> None:
    candidates = everything({})
    before = Lines(lines_file(tmp_path))
    run(candidates[:1], before)
    before.add(trying=0)  # Its turn before the next candidate's. And then it ended.
    rows = run(candidates, Lines(lines_file(tmp_path)))
    assert rows.keys() == {4}
    assert [row["status"] for row in rows[4]] == ["timed", "timed", "failed"]


def test_a_present_choice_that_fails_in_a_later_process_is_to_blame(tmp_path: Path) -> None:
    run(everything({})[:1], Lines(lines_file(tmp_path)))
    rows = run(everything({4: does_not_fit}), Lines(lines_file(tmp_path)))
    assert rows.keys() == {4}
    assert [row["status"] for row in rows[4]] == ["timed", "timed", "failed"]


def test_the_report_says_that_a_present_choice_failed(tmp_path: Path) -> None:
    lines, candidates = Lines(lines_file(tmp_path)), everything({4: one_value_wrong})
    lines.add(candidates=[each.facts() for each in candidates], shared={})
    run(candidates, lines)
    document = gathered(tmp_path, lines.rows)
    unchanged, told = advice.sentences(document)
    assert "change nothing" in unchanged
    assert told.startswith("SIZE, the present choice (size=4, warps=1): wrong in 2 x 4: Wrong: off")
    assert told.endswith("; 4 candidates were not tried")
    assert document["left_out"] == []
    assert f"- {told}\n" in to_markdown(DOCUMENT | document)


def test_what_compiling_said_is_kept(tmp_path: Path) -> None:
    candidates = everything({})
    size = {each.number: each.tiles.size for each in candidates}

    def found(number: int) -> dict[str, Any] | None:
        if size[number] == 2:
            return {"reason": "CompilationError: no", "kernels": {}}
        return {"reason": "", "kernels": {"_kernel": {"registers": 7}}}

    rows = run(candidates, Lines(lines_file(tmp_path)), found)
    assert [row["status"] for row in rows[2]] == ["does not compile"]
    assert {row["registers"] for row in rows[4]} == {7}


def test_what_is_not_compiled_in_time_has_no_turn(tmp_path: Path) -> None:
    candidates = everything({})
    # The present choice is compiled last: none may come before it.
    lines = Lines(lines_file(tmp_path))
    run(candidates, lines, lambda number: None if number == 0 else {}, seconds=0.3)
    assert lines.done == set()
    run(candidates, lines, lambda number: {} if number < 2 else None, seconds=3.0)
    assert lines.done == {0, 1}


def test_a_process_that_ended_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    candidates = everything({})
    before = Lines(lines_file(tmp_path))
    run(candidates[:1], before)
    before.add(trying=1)  # And then it ended.
    run(candidates, Lines(lines_file(tmp_path)))
    lines = Lines(lines_file(tmp_path))
    statuses = [(row["number"], row["status"]) for row in lines.rows if "status" in row]
    later = [(number, "timed") for number in (2, 3, 4) for _ in range(2)]
    assert statuses == [(0, "timed"), (0, "timed"), (1, "failed"), *later]
    assert lines.done == {each.number for each in candidates}


def timed(number: int, size: int, *seconds: float, present: bool = False) -> list[dict[str, Any]]:
    """Beside 1 ms of the present choice."""
    return [
        {
            "number": number,
            "setting": "SIZE",
            "tiles": {"size": size},
            "present": present,
            "shape": f"shape {place}",
            "status": "timed",
            "bytes": 2e9,
            "flops": 0.0,
            "seconds": each,
            "present_seconds": 0.001,
            "registers": 32,
        }
        for place, each in enumerate(seconds)
    ]


def failed(number: int, size: int, reason: str) -> dict[str, Any]:
    row = timed(number, size, 1.0)[0]
    return {**row, "status": "failed", "reason": reason}


ROWS = [
    *timed(0, 4, 0.001, 0.001, present=True),
    *timed(1, 8, 0.0008, 0.0008),
    *timed(2, 16, 0.0004, 0.0012),  # Faster on the whole, and slower in one shape.
    *timed(3, 32, 0.0002),  # Not in all shapes.
    *timed(4, 64, 0.00099, 0.00099),
    failed(5, 128, "out of resource"),
]


DOCUMENT: dict[str, Any] = {
    "command": "python -m loadtest.gpu.tune",
    "started": "2026-11-20T10:00:00+00:00",
    "machine": {"cpu": "a CPU", "cores": 16.0, "memory_bytes": 2**37, "python": "3.12.3"},
    "dry": False,
    "device": "NVIDIA H200",
    "versions": {"triton": "3.6.0"},
    "parts": {
        "limits": {"rows": [{"name": "copy", "per_s": 4e12}, {"name": "matrix", "per_s": 8e14}]}
    },
    "rows": ROWS,
    "changes": advice.changes(ROWS, {}),
    "candidates": 7,
    "dropped": {},
    "left_out": [{"setting": "SIZE", "compiled": False}],
}


def test_what_is_faster_everywhere_is_advised() -> None:
    (change,) = advice.changes(ROWS, {})
    assert (change["present"], change["tiles"]) == ({"size": 4}, {"size": 8})
    assert change["mean"] == pytest.approx(1.25)
    assert advice.sentences(DOCUMENT | {"rows": [], "changes": [change]}) == [
        "change SIZE from (size=4) to (size=8): 25.0 % faster (25.0 % to 25.0 %)"
    ]
    slower = [row for row in ROWS if row["number"] in (0, 2, 3, 4, 5)]
    assert advice.changes(slower, {}) == []
    nothing = advice.sentences(DOCUMENT | {"rows": slower, "changes": []})
    assert nothing == ["change nothing: no candidate was worth it"]


def test_what_else_a_change_moves_is_said() -> None:
    shared = {"SIZE": "another kernel takes it too", "OTHER": "of another setting"}
    found = advice.changes(ROWS, shared)
    said = advice.sentences(DOCUMENT | {"changes": found})
    assert said[1:] == ["mind, of SIZE: another kernel takes it too"]


def test_every_setting_says_what_a_change_of_it_moves() -> None:
    table = settings(MODELS["tiny-llama"], DRY_TILES)
    assert set(table) == set(NAMES)
    told = {each.name.split("(")[0]: each.shared for each in table.values()}
    assert "KEY_SPLIT" in told["attention_choice"]
    assert "layer_norm" in told["row_warps"]
    assert "gguf_parts" in told["GGUF_FEW"]


def test_gguf_tiles_are_timed_with_the_cut_that_they_would_have() -> None:
    def cut(name: str, rows: int, *, own: int, columns: int, parts: int = 0) -> int:
        tiles = GGUFTiles(own, columns, 32, 4, 3, parts)
        return parts_of(name, tiles, rows, outputs=14_336, inputs=4096)

    # 224 programs of 64 columns, 448 of 32, 112 of 128.
    wanted = {32: 2, 64: 4, 128: 8}
    for columns, parts in wanted.items():
        assert cut("GGUF_FEW", 1, own=16, columns=columns) == parts
        # GGUF_FEW's columns count for it too.
        assert cut("GGUF_MANY", 32, own=64, columns=columns) == wanted[64]
    assert cut("GGUF_MANY", 64, own=32, columns=64) == 1
    assert cut("GGUF_MANY", 128, own=64, columns=64) == 1
    assert cut("GGUF_MANY", 128, own=128, columns=64) == wanted[64]
    assert cut("GGUF_MANY", 128, own=64, columns=64, parts=8) == 8


def test_the_report_has_every_figure() -> None:
    text = to_markdown(DOCUMENT)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    # 0.8 ms of the least 0.5.
    figures = ["800.0; 1.25; 62.5 %"] * 2
    assert ["8", "1.250", *figures, "32", "–", "–"] in cells
    assert any(line[:2] == ["**4** (present)", "1.000"] for line in cells if line)
    for line in (
        "- 1 were much slower in the first shape",
        "- 1 failed, as (size=128): out of resource",
        "The time was over before 1 of 7 candidates had their turn, 1 of them not compiled yet:",
        "- change SIZE from (size=4) to (size=8): 25.0 % faster",
    ):
        assert line in text, line
