"""Other tile sizes of one kernel beside those that it chooses, in the shapes its part measures.

    loadtest/gpu/run.sh WHEELS OUT --tiles decode-attention keys=128,warps=8 split=1024

Each candidate says what it changes.  It is held against a reference in float32 and timed in turns
with the kernel's own choice; one that doesn't compile, doesn't fit or is wrong is a row that says
so.  Nothing here changes `tiles.py`: tiles are part of the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loadtest.gpu.extent import DRY, GPU
from loadtest.gpu.job import process_parser, shortened, write_json
from loadtest.gpu.machine import device as device_name
from loadtest.gpu.parts.cases import Case, Tiles
from loadtest.gpu.parts.kernels import CASES
from loadtest.gpu.parts.kernels_experts import OP
from loadtest.gpu.parts.kernels_products import GGUFTiles
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.timing import Timer
from loadtest.report import table
from penstock.model.config import ModelConfig
from penstock_kernels.triton import matmul_tiles, tiles
from penstock_kernels.triton.tiles import attention_choice

TOLERANCE = 0.01
"""The share of a row's norm that is tolerated: bfloat16's rounding is a quarter of it, a missing
tile more."""
COLUMNS = {
    "shape": "{shape}",
    "tiles": "{tiles}",
    "µs": "{us:,.1f}",
    "times as fast as the present ones": "{speed:.3f}",
    "error": "{error:.2g}",
    "failed": "{failed}",
}
NAN = float("nan")


@dataclass(frozen=True)
class Block:
    block: int
    warps: int


@dataclass(frozen=True)
class Warps:
    warps: int


def kernels(config: ModelConfig) -> dict[str, tuple[str, Tiles]]:
    """What each kernel's cases are called, and the tiles that candidates differ from, by name."""
    mixed = attention_choice(config.head_dim)
    invariant = attention_choice(config.head_dim, batch_invariant=True).few
    row_warps = Warps(tiles.row_warps(tiles.row_block(config.hidden_size)))
    few, many = matmul_tiles.GGUF_FEW, matmul_tiles.GGUF_MANY
    return {
        "decode-attention": ("decode attention", mixed.few),
        "prefill-attention": ("prefill attention", mixed.many),
        "invariant-attention": ("decode attention, batch-invariant", invariant),
        "invariant-product": ("linear, invariant", matmul_tiles.INVARIANT),
        "int4": ("linear, int4 weights", matmul_tiles.WEIGHT_ONLY),
        "int8": ("linear, int8 weights", matmul_tiles.WEIGHT_ONLY),
        "fp8": ("linear, fp8", matmul_tiles.FP8),
        "experts-fp8": (OP.format("output"), matmul_tiles.EXPERTS_FP8[matmul_tiles.EXPERTS.rows]),
        "experts-fp8-blocks": (
            OP.format("block"),
            matmul_tiles.EXPERTS_FP8[matmul_tiles.EXPERTS.rows],
        ),
        "gguf-few": ("linear, Q4_K weights", GGUFTiles(**asdict(few))),
        "gguf-many": ("linear, Q4_K weights", GGUFTiles(**asdict(many), few=False)),
        "gate": ("silu_mul", Block(tiles.GATE_BLOCK, tiles.GATE_WARPS)),
        "rms-norm": ("rms_norm", row_warps),
        "sampling": ("sample, top-k, top-p", tiles.SAMPLING_TILES),
    }


def changed(present: Tiles, words: str) -> Tiles:
    """The tiles with the changes of words like `keys=128,warps=8`. Raises ValueError for what is no
    field or no number."""
    wanted = dict(pair.split("=", 1) for pair in words.split(","))
    if unknown := wanted.keys() - asdict(present).keys():
        raise ValueError(f"no {', '.join(unknown)} among {', '.join(asdict(present))}")
    return replace(present, **{name: int(value) for name, value in wanted.items()})


def rows(case: Case, candidates: list[Tiles], device: torch.device, timer: Timer) -> Iterator[Any]:
    """A row for each candidate."""
    bench = case.make(device)
    if bench.reference is None:
        raise ValueError(f"{case.op} has nothing to be held against")
    wanted, present = bench.reference(), timer.ready(bench.work(None))
    for candidate in candidates:
        row = {"shape": case.shape, "tiles": said(candidate), "failed": ""}
        try:
            work = bench.work(candidate)
            error = distance(bench.sample(work()), wanted, exact=bench.exact)  # type: ignore[arg-type]
            if not error <= (0 if bench.exact else TOLERANCE):
                raise ValueError(f"off by {error:.2g} of the reference")
            theirs, own = timer.in_turns([present, timer.ready(work)])
            speed = theirs.seconds / own.seconds
            yield row | {"us": 1e6 * own.seconds, "speed": speed, "error": error}
        except Exception as problem:
            yield row | {"us": NAN, "speed": NAN, "error": NAN, "failed": shortened(problem)}


def distance(ours: Tensor, wanted: Tensor, *, exact: bool) -> float:
    """The largest of the rows' errors, as shares of their norms; NaN for NaN; inf for another
    shape. exact: the share of what differs."""
    if ours.shape != wanted.shape:
        return float("inf")
    if exact:
        return float((ours != wanted).float().mean())
    far = (ours.float() - wanted.float()).norm(dim=-1)
    return float((far / wanted.float().norm(dim=-1).clamp(min=1e-20)).max())


def said(candidate: Tiles) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(candidate).items())


def main() -> int:
    """Exit status: 0; 1 where a candidate failed."""
    parser = process_parser("loadtest.gpu.tiles")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("kernel")
    parser.add_argument("changes", nargs="+")
    flags = parser.parse_args()
    extent = DRY if flags.dry else GPU
    config = MODELS[extent.kernels]
    known = kernels(config)
    if flags.kernel not in known:
        parser.error(f"no kernel {flags.kernel} among {', '.join(known)}")
    op, present = known[flags.kernel]
    try:
        candidates = [changed(present, words) for words in flags.changes]
    except ValueError as error:
        parser.error(str(error))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    timer, found = Timer(device, extent.repeats), list[Any]()
    with torch.inference_mode():
        for case in (case for make in CASES.values() for case in make(extent, config)):
            if case.op == op:
                found += rows(case, candidates, device, timer)
    facts = {"kernel": flags.kernel, "present": asdict(present), "device": device_name()}
    write_json(flags.output / f"tiles-{flags.kernel}.json", {**facts, "rows": found})
    print(f"{facts}\n\n{table(COLUMNS, found)}")
    return int(any(row["failed"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
