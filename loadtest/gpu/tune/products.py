"""Tiles of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from loadtest.gpu.parts.cases import Case, Tiles
from loadtest.gpu.parts.kernels_products import (
    KINDS,
    MATRIX,
    Load,
    bfloat16,
    fp8,
    gguf,
    gguf_bytes,
    int_bytes,
    matrices,
    packed,
    product,
)
from loadtest.gpu.tune.settings import Setting, Sizes
from penstock.model_config import ModelConfig
from penstock_kernels.triton import tiles as present
from penstock_kernels.triton.tiles import MatmulTiles

_CHOICES = {
    "rows": (16, 32, 64, 128),
    "columns": (32, 64, 128, 256),
    "inner": (32, 64, 128),
    "warps": (2, 4, 8),
    "stages": (2, 3, 4, 5, 6),
}
_OTHERS = tuple(
    MatmulTiles(*each)
    for each in (
        (64, 128, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (16, 64, 128, 4, 5),
        (16, 128, 128, 4, 4),
        (32, 64, 128, 4, 4),
    )
)


def sensible(tiles: Tiles) -> bool:
    """Sums that fit the registers, and some for every thread. Operands that don't fit the shared
    memory fail when they are compiled or launched."""
    sums = tiles.rows * tiles.columns / (32 * tiles.warps)
    return 4 <= sums <= 128


def invariant(config: ModelConfig, sizes: Sizes) -> Setting:
    cases = tuple(products(config, bfloat16, sizes.invariant_rows))
    return Setting("INVARIANT", "_linear", present.INVARIANT, _CHOICES, cases, _OTHERS, sensible)


def weight_only(config: ModelConfig, sizes: Sizes) -> Setting:
    cases = [
        case
        for bits in (4, 8)
        for case in products(
            config, packed(bits), sizes.packed_rows, f"int{bits}, ", int_bytes(bits)
        )
    ]
    return Setting(
        "WEIGHT_ONLY",
        "_weight_only",
        present.WEIGHT_ONLY,
        {name: values for name, values in _CHOICES.items() if name != "inner"},
        tuple(cases),
        (MatmulTiles(64, 64, 0, 4, 3), MatmulTiles(64, 128, 0, 8, 3)),
        sensible,
    )


def fp8_weights(config: ModelConfig, sizes: Sizes) -> Setting:
    cases = tuple(products(config, fp8, sizes.fp8_rows, weight_bytes=1.0))
    choices = {**_CHOICES, "inner": (64, 128, 256)}
    others = tuple(replace(each, inner=128) for each in _OTHERS)
    return Setting("FP8", "_fp8_linear", present.FP8, choices, cases, others, sensible)


_PARTS = (
    "parts is no field of a constant: `gguf_parts` decides it, for GGUF_FEW and GGUF_MANY "
    "alike; 0 is what it says"
)
MOVES = {
    "GGUF_FEW": {
        "rows": "rows is up to how many rows GGUF_FEW is taken, and the batch-invariant mode "
        "takes it for any",
        "columns": "columns is what `gguf_parts` counts programs by, for GGUF_MANY too",
        "parts": _PARTS,
    },
    "GGUF_MANY": {
        "rows": "rows is up to how many rows sums are cut into parts",
        "parts": _PARTS,
    },
}


@dataclass(frozen=True)
class GGUFTiles:
    """MatmulTiles, and into how many parts the sum over the inputs is cut; 0: as many as it would
    be, were these tiles the present choice."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int
    parts: int

    @property
    def tiles(self) -> MatmulTiles:
        return MatmulTiles(*(getattr(self, field.name) for field in fields(MatmulTiles)))


def gguf_few(config: ModelConfig, sizes: Sizes) -> Setting:
    return gguf_setting(config, sizes, "GGUF_FEW", (16, 32), sizes.few_rows)


def gguf_many(config: ModelConfig, sizes: Sizes) -> Setting:
    return gguf_setting(config, sizes, "GGUF_MANY", (32, 64, 128), sizes.many_rows)


def gguf_setting(
    config: ModelConfig, sizes: Sizes, name: str, heights: tuple[int, ...], rows: tuple[int, ...]
) -> Setting:
    """Of the down projection too, which has few outputs and many inputs."""

    def keywords(tiles: GGUFTiles, rows: int, outputs: int, inputs: int) -> dict[str, Tiles]:
        return {
            "tiles": tiles.tiles,
            "parts": parts_of(name, tiles, rows, outputs, inputs),
        }

    cases = [
        case
        for matrix in sizes.gguf_matrices
        for kind in KINDS
        for case in products(
            config, gguf(kind, keywords), rows, f"{kind}, ", gguf_bytes(kind), matrix
        )
    ]
    now: MatmulTiles = getattr(present, name)
    choices = {
        "rows": heights,
        "columns": (32, 64, 128),
        "warps": (2, 4, 8),
        "stages": (1, 2, 3, 4),
        "parts": (0, 1, 2, 4, 8),
    }
    return Setting(
        name,
        "_gguf_product",
        GGUFTiles(now.rows, now.columns, now.inner, now.warps, now.stages, 0),
        choices,
        tuple(cases),
        sensible=sensible,
        moves=MOVES[name],
    )


def parts_of(name: str, tiles: GGUFTiles, rows: int, outputs: int, inputs: int) -> int:
    """As `gguf_linear` would choose them, were these tiles what `name` is."""
    if tiles.parts:
        return tiles.parts
    many = tiles.rows if name == "GGUF_MANY" else present.GGUF_MANY.rows
    columns = tiles.columns if name == "GGUF_FEW" else present.GGUF_FEW.columns
    return present.gguf_parts(outputs, inputs, columns) if rows <= many else 1


def products(
    config: ModelConfig,
    load: Load,
    rows: tuple[int, ...],
    prefix: str = "",
    weight_bytes: float = 2.0,
    matrix: str = MATRIX,
) -> Iterator[Case]:
    """A case for each number of rows. weight_bytes: of one weight."""
    for count in rows:
        case = product(load, count, *matrices(config)[matrix], weight_bytes)
        yield replace(case, shape=f"{prefix}{case.shape}")
