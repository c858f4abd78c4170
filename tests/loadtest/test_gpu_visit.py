"""A visit to a GPU machine in two calls: what fits in their time, comes home and is carried."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from loadtest.gpu import __main__ as command
from loadtest.gpu import archive, start
from loadtest.gpu.extent import DRY, GPU
from loadtest.gpu.job import DONE, FAILED, OUT_OF_TIME, Job, part_file, run, write_json
from loadtest.gpu.parts import EVERY_PART, VISITS, Part
from loadtest.gpu.parts.steps import chosen_modes

ROOT = Path(__file__).resolve().parents[2]
INSTALLING = 10.0
TURN = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
cache = Path(os.environ["TRITON_CACHE_DIR"])
print("parts", sys.argv[sys.argv.index("--call") + 1], len(list(cache.iterdir())))
results = Path(sys.argv[sys.argv.index("--output") + 1])
(results / "parts").mkdir(parents=True, exist_ok=True)
print("before", sorted(path.name for path in (results / "parts").iterdir()))
(results / "parts" / "checks.json").write_text("{{}}")
(results / "logs").mkdir(exist_ok=True)
(results / "logs" / "checks.log").write_text("said")
(results / "results.md").write_text("a report")
(results / "results.json").write_text("{{}}")
sys.exit(3)
"""
"""Stands in for the measurements."""
COMPILED = """
import sys, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sys.path.insert(0, {folder!r})
from a_kernel import double
hits = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
source = ASTSource(double, {{"x": "*fp32", "N": "constexpr"}}, {{"N": 64}})
built = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(hits[0], len(built.asm["cubin"]) > 0)
"""
KERNEL = """
import triton
import triton.language as tl


@triton.jit
def double(x, N: tl.constexpr):
    at = x + tl.arange(0, N)
    tl.store(at, 2 * tl.load(at))
"""


@pytest.mark.parametrize(("call", "most"), [("works", 400), ("speed", 290)])
def test_a_calls_parts_fit_in_its_time(call: str, most: float) -> None:
    visit = VISITS[call]
    assert visit.seconds <= most
    around = INSTALLING + command.REPORT_SECONDS + start.PACKING
    assert sum(part.seconds for part in visit.parts) + around <= visit.seconds
    # What is killed at the end of its time, and held by a driver, ends before the report must.
    assert command.GRACE + command.LEAVING < command.REPORT_SECONDS


def test_each_part_has_one_meaning_and_the_modes_it_names() -> None:
    for visit in VISITS.values():
        for part in visit.parts:
            assert EVERY_PART[part.name] == part
            for extent in (GPU, DRY):
                names = {mode.name for mode in extent.modes}
                assert visit is VISITS["whole"] or names >= set(part.modes)


def test_a_mode_of_one_part_is_no_other_parts(tmp_path: Path) -> None:
    def names(part: str) -> list[str]:
        job = Job(EVERY_PART[part], tmp_path, tmp_path, 9.0, GPU)
        return [mode.name for mode in chosen_modes(job)]

    assert names("steps-0-packed") == ["int4 weights", "fp8 weights"]
    assert not {"int4 weights", "fp8 weights"} & set(names("steps-0"))
    assert len(names("steps-0")) == len(GPU.modes) - 2


def began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Path, *more: str
) -> tuple[int, str]:
    """start.py's exit status, and what stood in for the measurements said."""
    stand_in = tmp_path / "turn.py"
    stand_in.write_text(TURN.format(root=str(ROOT)))
    said: list[str] = []

    def wait_for(line: list[str], environment: dict[str, str]) -> int:
        asked = [sys.executable, str(stand_in), *line[3:]]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=60)
        said.append(done.stdout + done.stderr)
        return done.returncode

    monkeypatch.setattr(start, "wait_for", wait_for)
    monkeypatch.setattr(sys, "argv", ["start.py", *more, str(wheels(tmp_path)), str(out)])
    return start.main(), "".join(said)


def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir(exist_ok=True)
    return folder


def compiled(cache: Path, name: str, size: int = 100) -> None:
    """An entry as Triton makes it."""
    folder = cache / name
    folder.mkdir(parents=True)
    files = {f"k.{suffix}": bytes(size) for suffix in ("cubin", "ptx", "ttir")}
    for file, content in {**files, "k.json": b"{}"}.items():
        (folder / file).write_bytes(content)
    paths = {file: str(folder / file) for file in (*files, "k.json")}
    (folder / "__grp__k.json").write_text(json.dumps({"child_paths": paths}))


def test_three_files_come_home_and_are_carried_into_the_second_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    compiled(first, "a")
    compiled(first, "b")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(first))
    home = tmp_path / "home"
    assert began(tmp_path, monkeypatch, home) == (3, "parts works 2\nbefore []\n")
    names = {archive.TEXT, archive.RESULTS, archive.CACHE}
    assert {path.name for path in home.iterdir()} == names
    assert (home / archive.TEXT).read_text() == "a report"
    with tarfile.open(home / archive.RESULTS) as file:
        assert {"parts/checks.json", "logs/checks.log", "results.json"} <= set(file.getnames())
    # The second machine is bare; it has what was carried.
    second = tmp_path / "second"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(second))
    carried = ("--carried", str(home), "--call", "speed")
    assert began(tmp_path, monkeypatch, tmp_path / "out", *carried)[1].startswith("parts speed 2")
    listed = json.loads((second / "a" / "__grp__k.json").read_text())["child_paths"]
    assert listed["k.cubin"] == str(second / "a" / "k.cubin")
    assert not (second / "a" / "k.ptx").exists()
    # And, asked to go on, it knows what was done.
    said = began(tmp_path, monkeypatch, tmp_path / "more", "--go-on", "--carried", str(home))[1]
    assert said.endswith("before ['checks.json']\n")


def test_a_callers_cache_is_used_and_one_of_its_own_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere")
    made = start.environment(tmp_path, tmp_path, dry=False)
    assert made["TRITON_CACHE_DIR"] == "/somewhere"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    made = start.environment(tmp_path, tmp_path, dry=False)
    assert made["TRITON_CACHE_DIR"] == str(tmp_path / "triton")


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_cache_that_cannot_be_read_costs_no_visit(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / archive.CACHE).write_bytes(content)
    start.bring(tmp_path, tmp_path / "cache")
    wanted = "holds no" if content is None else "can't be read"
    assert wanted in capsys.readouterr().err


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / archive.CACHE, "w:gz") as file:
        member = tarfile.TarInfo("../escaped")
        member.size = 1
        file.addfile(member, io.BytesIO(b"x"))
    start.bring(tmp_path, tmp_path / "cache")
    assert not (tmp_path / "escaped").exists()


def test_entries_that_have_no_room_are_left_out_whole(tmp_path: Path) -> None:
    cache, home = tmp_path / "cache", tmp_path / "home"
    compiled(cache, "small")
    compiled(cache, "large")
    (cache / "large" / "k.cubin").write_bytes(os.urandom(300_000))
    assert archive.pack_cache(cache, home, most=200_000) == 1
    assert (home / archive.CACHE).stat().st_size < 200_000
    assert archive.unpack_cache(home / archive.CACHE, tmp_path / "other") == 1
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["small"]


@pytest.mark.timeout(120)
def test_triton_finds_a_carried_kernel_elsewhere(tmp_path: Path) -> None:
    """Compiled for Hopper here, packed without its earlier stages, unpacked in another place."""
    (tmp_path / "a_kernel.py").write_text(KERNEL)

    def compile_in(cache: Path) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
        done = subprocess.run(
            [sys.executable, "-c", COMPILED.format(folder=str(tmp_path))],
            env={**kept, "TRITON_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert compile_in(tmp_path / "one") == "False True"
    assert archive.pack_cache(tmp_path / "one", tmp_path) == 0
    (tmp_path / "one").rename(tmp_path / "gone")
    archive.unpack_cache(tmp_path / archive.CACHE, tmp_path / "two")
    assert compile_in(tmp_path / "two") == "True True"


def test_a_long_log_keeps_both_ends(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"first" + bytes(3 * archive.LOG_BYTES) + b"last")
    archive.cut(log)
    assert log.stat().st_size < archive.LOG_BYTES + 100
    assert log.read_bytes().startswith(b"first")
    assert log.read_bytes().endswith(b"last")


def test_a_piece_that_fails_is_no_success_of_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows it is measured all the same; what fails of another library is only noted."""
    part = Part("a", "a_part_of_this_test", 9.0)

    class Module:
        own = True

        @classmethod
        def run(cls, job: Job) -> None:
            with job.attempt("the first", own=cls.own):
                raise ValueError("why")
            job.row(what="later")

    monkeypatch.setitem(sys.modules, part.module, Module)  # type: ignore[arg-type]
    for own, status in ((True, FAILED), (False, DONE)):
        Module.own = own
        run(Job(part, tmp_path, tmp_path, 9.0, DRY))
        found = json.loads(part_file(tmp_path, "a").read_text())
        assert (found["status"], found["rows"]) == (status, [{"what": "later"}])
        assert ("the first failed: ValueError: why" in found["reason"]) == own


def test_a_lost_device_ends_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part("a", "a_part_of_this_test", 9.0)

    class Module:
        @staticmethod
        def run(job: Job) -> None:
            for number in range(3):
                with job.attempt(f"call {number}"):
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setitem(sys.modules, part.module, Module)  # type: ignore[arg-type]
    run(Job(part, tmp_path, tmp_path, 9.0, DRY))
    found = json.loads(part_file(tmp_path, "a").read_text())
    assert found["status"] == FAILED
    assert len(found["notes"]) == 1
    assert "call 0 failed" in found["reason"]


def test_the_exit_status_hides_nothing(tmp_path: Path) -> None:
    assert command.status_of([DONE, DONE]) == 0
    assert command.status_of([DONE, OUT_OF_TIME]) == 3
    assert command.status_of([OUT_OF_TIME, FAILED]) == 1
    part = VISITS["works"].parts[0]
    none = command.merged(tmp_path, [part])[part.name]
    assert command.status_of([none["status"]]) == 3
    write_json(part_file(tmp_path, part.name), {**none, "status": DONE})
    assert command.status_of([command.merged(tmp_path, [part])[part.name]["status"]]) == 0
