"""What the interpreter doesn't see: that Triton's compiler takes every kernel, for a GPU that isn't
here, and that none asks for more shared memory than an SM has."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock_kernels import triton as kernels

ROOT = Path(__file__).parents[3]
CALL = re.compile(r"^attention\S*\n((?:  .*\n)*)", re.MULTILINE)
ATTEND = re.compile(
    r" attend: .* (\d+) bytes spilled,.* copies in flight (\d+), table entries (\d+)"
)
CALLS = {
    name: re.compile(rf"^{name}\n((?:  .*\n)*)", re.MULTILINE)
    for name in ("linear", "experts", "experts-fp8")
}
PRODUCT = re.compile(
    r" (?:_linear|_expert_linear|_expert_fp8): .* 0 bytes spilled,.* wgmma (\d+), mma (\d+)"
)
EARLY = {"attend", "combine", "_rope_write", "_rms_norm", "_layer_norm", "_gate_mul", "_activate"}
EARLY |= {"_expert_levels", "_row_levels", "_gate_levels"}
EARLY |= {"_route", "_place", "_list_tiles", "_sum_experts"}
EARLY |= {"_expert_linear", "_expert_fp8", "_expert_gguf", "_linear", "_fp8_linear", "_fp8_blocks"}
EARLY |= {"_quantise", "_quantise_groups", "_weight_only", "_gguf_product", "_add_parts"}
EARLY |= {"_group_sums"}
COMBINE = re.compile(r" combine: .* copies in flight (\d+)")
AHEAD = re.compile(r"^  (\w+): .* lines ahead (\d+)", re.MULTILINE)
LAUNCHED_EARLY = re.compile(r"^  (\w+): .*?(, launched early)?$", re.MULTILINE)
LAUNCH = re.compile(r"(?:^ +(?=_\w+\[.+\]\($)|launch_rows\()(_\w+)", re.MULTILINE)


KEPT = ROOT / "build/compiled-for-hopper"
WEEK = 7 * 24 * 3600.0


@pytest.fixture(scope="module")
def cache() -> Path:
    """Where compiled kernels are, which Triton finds by a digest of their sources, options and
    compilers: several tests ask about the same ones, and so do later runs. What is older than a
    week is compiled again."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for folder in KEPT.iterdir():
        if folder.stat().st_mtime < time.time() - WEEK:
            shutil.rmtree(folder, ignore_errors=True)
    return KEPT


def check_attention(said: str) -> None:
    """Keys and values of the tiles that follow are on their way during a tile's products, and sums
    stay in registers. So are three numbers of each of three splits while one is folded. An entry of
    the block table is read once for a block's 16 keys, of which a tile has 128 at most."""
    attends = [kernel for call in CALL.findall(said) for kernel in ATTEND.findall(call)]
    assert len(attends) > 5
    for spilled, copies, entries in attends:
        assert 0 < int(entries) <= 128 // 16
        assert int(spilled) <= 64
        assert int(copies) >= 3
    folds = COMBINE.findall(said)
    assert folds
    assert all(int(copies) >= 9 for copies in folds)


def check_invariant_products(said: str) -> None:
    """All tiles of batch-invariant products multiply by the same kind of instruction, so that their
    sums have the same bits."""
    for call in CALLS.values():
        (launches,) = call.findall(said)
        kinds = PRODUCT.findall(launches)
        assert len(kinds) >= 3
        check_alike(kinds)


def check_alike(kinds: list[tuple[str, str]]) -> None:
    assert {(int(wgmma) > 0, int(mma)) for wgmma, mma in kinds} == {(True, 0)}


def check_early_launches(said: str) -> None:
    """Checks the launches of a decode's kernels; that they wait first is checked as they are
    compiled, and that what products fetch ahead is of weights."""
    found = LAUNCHED_EARLY.findall(said)
    assert {name for name, early in found if early} == EARLY
    assert not {name for name, early in found if not early} & EARLY
    ahead = {name for name, lines in AHEAD.findall(said) if int(lines)}
    assert ahead == {"_linear", "_fp8_linear", "_fp8_blocks", "_weight_only"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_kernels_compile_for_hopper(cache: Path, request: pytest.FixtureRequest) -> None:
    """Each once; for every type and constant with --long."""
    said = compiled(cache, *([] if request.config.getoption("--long") else ["--once"]))
    check_attention(said)
    check_invariant_products(said)
    check_early_launches(said)
    launched = {line.split(":")[0].strip() for line in said.splitlines()}
    sources = Path(kernels.__file__).parent.rglob("*.py")
    named = {name for source in sources for name in LAUNCH.findall(source.read_text("utf-8"))}
    assert len(named) > 20
    assert named <= launched, f"no call in calls.py launches {named - launched}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_chunk_has_a_decodes_instructions(cache: Path) -> None:
    """With --batch-invariant: of floats, in the loop over keys. Compiled for another surrounding,
    the same source could become other instructions: a product and a sum could be fused in one of
    the two."""
    said = compiled(cache, "--floats", "attention-invariant", "attention-invariant-256")
    found = re.findall(r"^  attend: .* floats (\[.*\])$", said, re.MULTILINE)
    assert len(found) == 4
    for decode, chunk in (found[:2], found[2:]):
        (masked,) = ast.literal_eval(decode)
        # Tiles that all rows see have a loop of their own, which masks nothing.
        whole, rest = ast.literal_eval(chunk)
        assert masked["HGMMA"] > 0
        assert rest == masked
        assert masked.pop("FSEL") > 0
        assert whole == masked


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_products_of_levels_round_as_a_cpu_does(cache: Path) -> None:
    """Of each sum and 32 inputs, a product of two scales and a fused sum; nothing is added
    otherwise, and subnormal numbers stay."""
    said = compiled(cache, "--floats", "levels-q8_0")
    found = re.findall(r"^  _expert_levels: .* floats (\[.*\])$", said, re.MULTILINE)
    assert len(found) >= 2
    for loops in map(ast.literal_eval, found):
        (floats,) = loops
        assert floats.pop("IGMMA") == 1
        assert floats.keys() == {"FFMA", "FMUL"}
        assert floats["FFMA"] == floats["FMUL"]
    of_each = re.findall(r"^  \w+: .* quotients (\d+), flushes (\d+),", said, re.MULTILINE)
    assert len(of_each) > len(found)
    assert any(int(quotients) for quotients, _ in of_each)
    assert not any(int(flushes) for _, flushes in of_each)


LOOP = re.compile(r"^  (\w+): .* loop of (\d+) instructions", re.MULTILINE)
MOST = {
    "int4-128": ("_weight_only", [280, 340, 280, 300]),
    "attention": ("attend", [480, 650]),
    "attention-invariant": ("attend", [610, 460]),
    "attention-fp8": ("attend", [690, 850]),
    "linear": (
        "_linear",
        [90, 90, 84, 84, 100, 100, 105, 105, 132, 132, 98, 111, 100, 103, 139],
    ),
    "gguf-q6_k": ("_gguf_product", [750, 960, 770]),
    "gguf-q4_k": ("_gguf_product", [630, 850, 650]),
}
"""Instructions of a warp in a turn of the loop that multiplies, at most: by call, in the order of
its launches."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", MOST)
def test_loops_are_no_longer_than_they_were(call: str, cache: Path) -> None:
    kernel, most = MOST[call]
    said = compiled(cache, "--instructions", call)
    found = [int(count) for name, count in LOOP.findall(said) if name == kernel]
    assert len(found) == len(most)
    assert all(count <= bound for count, bound in zip(found, most, strict=True)), found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_batch_invariant_products_of_all_tiles_multiply_alike(cache: Path) -> None:
    """Also those of many rows of a wide matrix; --once leaves some out."""
    said = compiled(cache, "--instructions", "linear")
    kinds = PRODUCT.findall(said)
    assert len(kinds) == len(MOST["linear"][1])
    check_alike(kinds)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_logit_is_weighed_with_one_instruction_of_float64(cache: Path) -> None:
    """That is its sum: a program's thread has four logits a turn. Gaming GPUs have 1/64 of the rate
    for float64. Counting levels, for cuts, takes more."""
    said = compiled(cache, "--instructions", "logits")
    found = re.findall(r"^  _weigh_parts: .* float64 (\d+)$", said, re.MULTILINE)
    assert sorted(map(int, found))[:2] == [4, 4]


def compiled(cache: Path, *arguments: str) -> str:
    """What compile_for_hopper says."""
    environment = dict(os.environ, TRITON_CACHE_DIR=str(cache))
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.compile_for_hopper", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
