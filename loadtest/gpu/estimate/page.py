"""loadtest/results/cuda_estimate.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from loadtest.gpu.estimate.machine import H100, TAKEN
from loadtest.gpu.estimate.model import FP8_BLOCKS, QWEN3_8B, QWEN3_30B_A3B, Shape
from loadtest.gpu.estimate.steps import (
    Step,
    decode,
    gaps,
    mixed,
    prefill,
    prefill_shares,
    smaller_splits,
    tiles_in_flight,
)
from loadtest.report.facts import ROOT
from penstock.bench.load.report import markdown_table
from penstock_kernels.triton.matmul_tiles import EXPERTS_MANY
from penstock_kernels.triton.tiles import KEY_SPLIT, attention_choice
from penstock_worker.forward.buckets import Buckets, first_context
from penstock_worker.forward.mixed_buckets import MIXED_ROWS

TEMPLATE = Path(__file__).with_name("page.template")
PAGE = ROOT / "loadtest" / "results" / "cuda_estimate.md"
SEQUENCES, LONGEST, BLOCK = 256, 40_960, 16
CONTEXT = 1024
PROMPT = 8192
FEW, SHORT = 8, 50
NUMBERS = QWEN3_8B.heads * QWEN3_8B.head_dim
BUCKETS = replace(
    Buckets(SEQUENCES, LONGEST, BLOCK), first=first_context(SEQUENCES, BLOCK, NUMBERS)
)
MIXED = replace(BUCKETS, mixed_rows=MIXED_ROWS)
Q4_K = 4.5 / 8  # bytes of a weight
INVARIANT_8B = replace(QWEN3_8B, name="Qwen3-8B, batch-invariant", batch_invariant=True)
PACKED = replace(QWEN3_8B, name="Qwen3-8B, Q4_K", weight_bytes=Q4_K)
FP8_30B = replace(QWEN3_30B_A3B, name="Qwen3-30B-A3B, FP8", weight_bytes=FP8_BLOCKS)
MODELS = (QWEN3_8B, QWEN3_30B_A3B, FP8_30B)

Row = tuple[str, str, Step]


def rows() -> list[Row]:
    """(model, step, seconds)."""
    found: list[Row] = []
    for shape in MODELS:
        for batch in (1, 64, 256):
            found.append(_decode(shape, [CONTEXT] * batch, f"decode, {batch} x {CONTEXT:,}"))
        found.append((shape.name, f"prefill, {PROMPT:,}", prefill(shape, PROMPT)))
    for batch in (1, 256):
        found.append(_decode(INVARIANT_8B, [CONTEXT] * batch, f"decode, {batch} x {CONTEXT:,}"))
    found.append((INVARIANT_8B.name, f"prefill, {PROMPT:,}", prefill(INVARIANT_8B, PROMPT)))
    found.append(_decode(PACKED, [CONTEXT] * 256, f"decode, 256 x {CONTEXT:,}"))
    found.append(_decode(QWEN3_8B, skewed(), f"decode, 255 x {CONTEXT:,} and one of {LONGEST:,}"))
    for shape in (QWEN3_8B, PACKED):
        what = f"decode, {FEW} x {CONTEXT:,}, and a prompt of {SHORT}"
        found.append((shape.name, what, mixed(shape, [CONTEXT] * FEW, SHORT)))
    return found


def skewed() -> list[int]:
    return [LONGEST, *[CONTEXT] * 255]


def page() -> str:
    assumed = [[each.name, f"{getattr(TAKEN, each.name):g}"] for each in fields(TAKEN)]
    found = [[cell(row) for cell in COLUMNS.values()] for row in rows()]
    low, high = prefill_shares(QWEN3_8B, PROMPT)
    saved, _ = smaller_splits(QWEN3_8B, [CONTEXT], 128)
    _, lost = smaller_splits(QWEN3_8B, [CONTEXT] * SEQUENCES, 128)
    text = TEMPLATE.read_text(encoding="utf-8").format(
        memory=H100.memory / 1e12,
        matrix=H100.matrix / 1e12,
        sequences=SEQUENCES,
        longest=LONGEST,
        graphs=len(BUCKETS.all),
        prompt=PROMPT,
        split=KEY_SPLIT,
        context=CONTEXT,
        saved=1000 * saved,
        lost=1000 * lost,
        low=100 * low,
        high=100 * high,
        assumed_attention=(TAKEN.two_tiles_least, TAKEN.two_tiles_most),
        assumed_products=(TAKEN.products_least, TAKEN.products),
        mixed=len(MIXED.all) - len(BUCKETS.all),
        table=markdown_table(list(COLUMNS), found),
        left=markdown_table(["step", "what holds it back", "what would fix it"], left()),
        assumed=markdown_table(["`Taken`, of loadtest/gpu/estimate/machine.py", ""], assumed),
    )
    return text.rstrip() + "\n"


def left() -> list[list[str]]:
    """What the table's figures still suffer from."""
    stages, between = attention_choice(QWEN3_8B.head_dim).many.stages, gaps(QWEN3_8B)
    tiles = EXPERTS_MANY
    rate = TAKEN.tiled(H100, tiles.rows, tiles.columns) / 1e12
    splits = -(-CONTEXT // KEY_SPLIT)
    found = [
        [
            "decode, batch 1",
            f"{QWEN3_8B.kernels} kernels in a row, with {1000 * between:.2f} ms between them",
            "library products that begin early, as our kernels do; fewer kernels",
        ],
        [
            "decode, batch 1",
            f"{CONTEXT:,} keys are {splits} splits, for which attention has "
            f"{splits * QWEN3_8B.kv_heads} programs on {H100.processors} processors",
            "smaller splits, which would cost large batches more",
        ],
        [
            "prefill",
            "a tile's softmax waits for its scores, and the product with values for the softmax",
            "two halves of a program that take turns, or scores of the next tile meanwhile",
        ],
        [
            "prefill of a mixture of experts",
            f"tiles of {tiles.rows} x {tiles.columns} come from the cache at {rate:.0f} TFLOP/s at "
            "most, and an expert's last one is half empty",
            "loads that several processors share",
        ],
    ]
    if tiles_in_flight(stages) < 2:
        found.append(["prefill", "attention has one tile of keys in flight", "more stages"])
    return found


def _decode(shape: Shape, contexts: list[int], what: str) -> Row:
    return shape.name, what, decode(shape, contexts)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: row[0],
    "step": lambda row: row[1],
    "limit": lambda row: _ms(row[2].limit),
    "estimate": lambda row: _ms(row[2].now),
    "of the limit": lambda row: f"{100 * row[2].share:.0f} %",
}
