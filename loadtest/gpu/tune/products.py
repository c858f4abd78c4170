"""Tiles of matrix products."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadtest.gpu.extent import TileSizes
from loadtest.gpu.parts.cases import Tiles
from loadtest.gpu.parts.kernels_products import (
    BFLOAT16,
    FP8,
    KINDS,
    gguf,
    packed,
    product_cases,
)
from loadtest.gpu.tune.settings import Setting
from penstock.model_config import ModelConfig
from penstock_kernels.triton import matmul_tiles as now
from penstock_kernels.triton.matmul_tiles import MatmulTiles

_MATMUL = {
    "rows": (16, 32, 64, 128),
    "columns": (32, 64, 128, 256),
    "inner": (32, 64, 128),
    "warps": (2, 4, 8),
    "stages": (2, 3, 4, 5, 6),
}
_USUAL = (
    MatmulTiles(64, 128, 64, 4, 4),
    MatmulTiles(128, 128, 64, 8, 3),
    MatmulTiles(128, 256, 64, 8, 3),
    MatmulTiles(16, 64, 128, 4, 5),
    MatmulTiles(16, 128, 128, 4, 4),
    MatmulTiles(32, 64, 128, 4, 4),
)


def products(config: ModelConfig, sizes: TileSizes) -> dict[str, Setting]:
    whole_numbers = [
        case
        for bits in (4, 8)
        for case in product_cases(config, packed(bits), sizes.packed_rows, f"int{bits}, ")
    ]
    without_inner = {name: values for name, values in _MATMUL.items() if name != "inner"}
    found = {
        "invariant-product": Setting(
            "INVARIANT",
            "_linear",
            now.INVARIANT,
            _MATMUL,
            tuple(product_cases(config, BFLOAT16, sizes.invariant_rows)),
            _USUAL,
            turns=3,
        ),
        "weight-only": Setting(
            "WEIGHT_ONLY",
            "_weight_only",
            now.WEIGHT_ONLY,
            without_inner,
            tuple(whole_numbers),
            (MatmulTiles(64, 64, 0, 4, 3), MatmulTiles(64, 128, 0, 8, 3)),
            turns=2,
        ),
        "fp8": Setting(
            "FP8",
            "_fp8_linear",
            now.FP8,
            {**_MATMUL, "inner": (64, 128, 256)},
            tuple(product_cases(config, FP8, sizes.fp8_rows)),
            tuple(replace(each, inner=128) for each in _USUAL),
            turns=2,
        ),
        "gguf-few": replace(
            gguf_setting(config, sizes, "GGUF_FEW", (16, 32), sizes.few_rows),
            shared="rows is up to how many rows GGUF_FEW is taken (the batch-invariant mode takes "
            f"it for any), columns is what `gguf_parts` counts programs by; {_PARTS}",
            turns=2,
        ),
        "gguf-many": replace(
            gguf_setting(config, sizes, "GGUF_MANY", (32, 64, 128), sizes.many_rows),
            shared=f"rows is up to how many rows sums are cut into parts; {_PARTS}",
        ),
    }
    return {name: replace(each, sensible=few_sums) for name, each in found.items()}


def few_sums(tiles: Tiles) -> bool:
    """Sums that fit the registers, and some for every thread. Operands that don't fit the shared
    memory fail when they are compiled or launched."""
    return bool(4 <= tiles.rows * tiles.columns / (32 * tiles.warps) <= 128)


_PARTS = "parts is no field of either: `gguf_parts` decides it for both, 0 is what it says"


@dataclass(frozen=True)
class GGUFTiles(MatmulTiles):
    """parts: into how many the sum over the inputs is cut; 0: as many as it would be, were these
    tiles the present choice."""

    parts: int = 0


def gguf_setting(
    config: ModelConfig,
    sizes: TileSizes,
    name: str,
    heights: tuple[int, ...],
    rows: tuple[int, ...],
) -> Setting:
    def keywords(tiles: GGUFTiles, rows: int, outputs: int, inputs: int) -> dict[str, Tiles]:
        return {"tiles": tiles, "parts": parts_of(name, tiles, rows, outputs, inputs)}

    cases = [
        case
        for matrix in sizes.gguf_matrices
        for kind in KINDS
        for case in product_cases(config, gguf(kind, keywords), rows, f"{kind}, ", matrix)
    ]
    choices = {
        "rows": heights,
        "columns": (32, 64, 128),
        "warps": (2, 4, 8),
        "stages": (1, 2, 3, 4),
        "parts": (0, 1, 2, 4, 8),
    }
    present = GGUFTiles(**vars(getattr(now, name)))
    return Setting(name, "_gguf_product", present, choices, tuple(cases))


def parts_of(name: str, tiles: GGUFTiles, rows: int, outputs: int, inputs: int) -> int:
    """As `gguf_linear` would choose them, were these tiles what `name` is."""
    if tiles.parts:
        return tiles.parts
    many = tiles.rows if name == "GGUF_MANY" else now.GGUF_MANY.rows
    columns = tiles.columns if name == "GGUF_FEW" else now.GGUF_FEW.columns
    return now.gguf_parts(outputs, inputs, columns) if rows <= many else 1
