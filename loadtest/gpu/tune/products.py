"""Tiles of matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

import torch
from torch import Tensor

from loadtest.gpu.cost import product_bytes, product_flops
from loadtest.gpu.parts.kernels_products import GROUP, matrices
from loadtest.gpu.tune.settings import Bench, Case, Setting, Sizes, Tiles
from penstock.model_config import ModelConfig
from penstock_kernels.triton import tiles as present
from penstock_kernels.triton.linear import fp8_linear as fp8_module
from penstock_kernels.triton.linear import weight_only as packed_module
from penstock_kernels.triton.linear.dense import linear
from penstock_kernels.triton.linear.dequantise import dequantise
from penstock_kernels.triton.linear.gguf_linear import gguf_linear
from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GROUP as GGUF_GROUP
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights, empty
from penstock_kernels.triton.tiles import MatmulTiles
from penstock_worker.weights.repacking import LAYOUTS

MATRIX = "gate, up"
KINDS = ("Q4_K", "Q8_0")

_LEVELS = {torch.int8: (-128, 128), torch.uint8: (0, 256), torch.int32: (0, 2**31)}

Multiply = Callable[[Tensor, Tiles], Tensor]
Multiplication = tuple[Multiply, Callable[[Tensor], Tensor]]
"""A product, and the same in float32 of what its numbers stand for."""
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
    @cache
    def multiplication(device: torch.device) -> Multiplication:
        outputs, inputs = matrices(config)[MATRIX]
        weight = drawn(device, outputs, inputs)
        return (
            lambda x, tiles: linear(x, weight, tiles=tiles),
            lambda x: x.float() @ weight.float().T,
        )

    cases = tuple(products(config, sizes.invariant_rows, multiplication))
    return Setting("INVARIANT", "_linear", present.INVARIANT, _CHOICES, cases, _OTHERS, sensible)


def weight_only(config: ModelConfig, sizes: Sizes) -> Setting:
    def packed(bits: int) -> Callable[[torch.device], Multiplication]:
        @cache
        def multiplication(device: torch.device) -> Multiplication:
            outputs, inputs = matrices(config)[MATRIX]
            weights = packed_module.pack(drawn(device, outputs, inputs), bits=bits, group=GROUP)
            return (
                lambda x, tiles: packed_module.weight_only_linear(x, weights, tiles=tiles),
                lambda x: x.float() @ dequantise(weights, torch.float32).T,
            )

        return multiplication

    cases = [
        case
        for bits in (4, 8)
        for case in products(
            config, sizes.packed_rows, packed(bits), f"int{bits}, ", bits / 8 + 4 / GROUP
        )
    ]
    choices = {name: values for name, values in _CHOICES.items() if name != "inner"}
    return Setting(
        "WEIGHT_ONLY",
        "_weight_only",
        present.WEIGHT_ONLY,
        choices,
        tuple(cases),
        (MatmulTiles(64, 64, 0, 4, 3), MatmulTiles(64, 128, 0, 8, 3)),
        sensible,
    )


def fp8(config: ModelConfig, sizes: Sizes) -> Setting:
    @cache
    def multiplication(device: torch.device) -> Multiplication:
        outputs, inputs = matrices(config)[MATRIX]
        weight, scales = fp8_module.quantise_fp8(drawn(device, outputs, inputs))

        def reference(x: Tensor) -> Tensor:
            levels, x_scales = fp8_module.quantise_fp8(x)
            sums = levels.float() @ weight.float().T
            return sums * x_scales[:, None] * scales

        return lambda x, tiles: fp8_module.fp8_linear(x, weight, scales, tiles=tiles), reference

    cases = tuple(products(config, sizes.fp8_rows, multiplication, weight_bytes=1.0))
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
    return gguf(config, sizes, "GGUF_FEW", (16, 32), sizes.few_rows)


def gguf_many(config: ModelConfig, sizes: Sizes) -> Setting:
    return gguf(config, sizes, "GGUF_MANY", (32, 64, 128), sizes.many_rows)


def gguf(
    config: ModelConfig, sizes: Sizes, name: str, heights: tuple[int, ...], rows: tuple[int, ...]
) -> Setting:
    """Of the down projection too, which has few outputs and many inputs."""
    cases = [
        case
        for matrix in sizes.gguf_matrices
        for kind in KINDS
        for case in products(
            config, rows, kept(config, kind, matrix, name), f"{kind}, ", gguf_bytes(kind), matrix
        )
    ]
    now: MatmulTiles = getattr(present, name)
    values = (now.rows, now.columns, now.inner, now.warps, now.stages, 0)
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
        GGUFTiles(*values),
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


def kept(
    config: ModelConfig, kind: str, matrix: str, name: str
) -> Callable[[torch.device], Multiplication]:
    outputs, inputs = matrices(config)[matrix]

    @cache
    def multiplication(device: torch.device) -> Multiplication:
        weights = of_a_gguf(kind, outputs, inputs, device)
        return (
            lambda x, tiles: gguf_linear(
                x,
                weights,
                tiles=tiles.tiles,
                parts=parts_of(name, tiles, len(x), outputs, inputs),
            ),
            lambda x: x.float() @ gguf_rows(weights, None, torch.float32).T,
        )

    return multiplication


def of_a_gguf(kind: str, outputs: int, inputs: int, device: torch.device) -> GGUFWeights:
    """Random levels; scales and minima of a few sizes."""
    layout = LAYOUTS[kind]
    if inputs % layout.unit:
        layout = replace(layout, unit=GGUF_GROUP)
    weights = empty(layout, outputs, inputs, device)
    for name, tensor in weights.tensors.items():
        if name in ("levels", "high"):
            tensor.random_(*_LEVELS[tensor.dtype])
        elif tensor.is_floating_point():
            tensor.uniform_(0.5, 1.0)
        else:
            tensor.random_(1, 5)
    return weights


def gguf_bytes(kind: str) -> float:
    """Of a weight."""
    weights = empty(LAYOUTS[kind], 1, 1024, torch.device("meta"))
    return weights.nbytes / 1024


def products(
    config: ModelConfig,
    rows: tuple[int, ...],
    multiplication: Callable[[torch.device], Multiplication],
    prefix: str = "",
    weight_bytes: float = 2.0,
    matrix: str = MATRIX,
) -> Iterator[Case]:
    outputs, inputs = matrices(config)[matrix]
    for count in rows:

        def make(device: torch.device, count: int = count) -> Bench:
            multiply, reference = multiplication(device)
            x = drawn(device, count, inputs)
            return Bench(lambda tiles: lambda: multiply(x, tiles), lambda: reference(x))

        yield Case(
            f"{prefix}{count} x {inputs} x {outputs}",
            make,
            size=product_bytes(count, inputs, outputs, weight_bytes),
            flops=product_flops(count, inputs, outputs),
        )


def drawn(device: torch.device, *sizes: int) -> Tensor:
    return torch.randn(sizes, device=device).bfloat16()
