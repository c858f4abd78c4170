"""Matrix products: this project's beside torch's (cuBLAS)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.cost import product_bytes, product_flops
from loadtest.gpu.parts.cases import Bench, Case, Tiles, drawn
from penstock.model.config import ModelConfig
from penstock_kernels.triton.linear import fp8_linear, weight_only
from penstock_kernels.triton.linear.dense import linear
from penstock_kernels.triton.linear.dequantise import dequantise
from penstock_kernels.triton.linear.gguf_linear import gguf_linear
from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GROUP as GGUF_GROUP
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights, empty
from penstock_kernels.triton.matmul_tiles import GGUF_FEW, GGUF_MANY, MatmulTiles, gguf_parts
from penstock_worker.quantisation.fp8 import FP8Product
from penstock_worker.weights.repacking import LAYOUTS

GROUP = 128
MATRIX = "gate, up"
KINDS = ("Q8_0", "Q4_K")
_LEVELS = {torch.int8: (-128, 128), torch.uint8: (0, 256), torch.int32: (0, 2**31)}


@dataclass(frozen=True)
class Weights:
    """One matrix on a device, as some format holds it."""

    multiply: Callable[[Tensor, Tiles], Tensor]  # the product with these tiles
    exact: Callable[[Tensor], Tensor]  # the same in float32 of what the numbers stand for


@dataclass(frozen=True)
class Format:
    load: Callable[[int, int, torch.device], Weights]
    """(outputs, inputs, device) to a matrix; the same one each time."""
    weight_bytes: float  # of one weight, with its part of the scales


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a layer's stacked matrices and of the head."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    return {
        "qkv": ((config.num_heads + 2 * config.num_kv_heads) * dim, hidden),
        MATRIX: (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (config.vocab_size, hidden),
    }


def product(form: Format, rows: int, outputs: int, inputs: int) -> Case:
    def make(device: torch.device) -> Bench:
        weights, x = form.load(outputs, inputs, device), drawn(device, rows, inputs)
        plain = original(outputs, inputs, device)
        return Bench(
            lambda tiles: lambda: weights.multiply(x, tiles),
            lambda: weights.exact(x),
            torch=lambda: functional.linear(x, plain),
        )

    return Case(
        f"{rows} x {inputs} x {outputs}",
        make,
        size=product_bytes(rows, inputs, outputs, form.weight_bytes),
        flops=product_flops(rows, inputs, outputs),
        torch="linear, bfloat16",
    )


def product_cases(
    config: ModelConfig,
    form: Format,
    rows: Iterable[int],
    prefix: str = "",
    matrix: str = MATRIX,
    op: str = "",
) -> Iterator[Case]:
    """A case for each number of rows. prefix: of what is said of the shape."""
    for count in rows:
        case = product(form, count, *matrices(config)[matrix])
        yield replace(case, op=op, shape=f"{prefix}{case.shape}")


@cache
def original(outputs: int, inputs: int, device: torch.device) -> Tensor:
    """The matrix that every format but GGUF's stands for."""
    return drawn(device, outputs, inputs)


def _tiled(tiles: Tiles) -> dict[str, Tiles]:
    return {} if tiles is None else {"tiles": tiles}


def _bfloat16(outputs: int, inputs: int, device: torch.device) -> Weights:
    weight = original(outputs, inputs, device)
    return Weights(
        lambda x, tiles: linear(x, weight, **_tiled(tiles)), lambda x: x.float() @ weight.float().T
    )


BFLOAT16 = Format(_bfloat16, 2.0)


def packed(bits: int) -> Format:
    """Whole numbers of 4 or 8 bits, with float32 scales."""

    @cache
    def load(outputs: int, inputs: int, device: torch.device) -> Weights:
        weights = weight_only.pack(original(outputs, inputs, device), bits=bits, group=GROUP)
        return Weights(
            lambda x, tiles: weight_only.weight_only_linear(x, weights, **_tiled(tiles)),
            lambda x: x.float() @ dequantise(weights, torch.float32).T,
        )

    return Format(load, bits / 8 + 4 / GROUP)


@cache
def _fp8(outputs: int, inputs: int, device: torch.device) -> Weights:
    weight, scales = fp8_linear.quantise_fp8(original(outputs, inputs, device))

    def exact(x: Tensor) -> Tensor:
        levels, x_scales = fp8_linear.quantise_fp8(x)
        sums = levels.float() @ weight.float().T
        return sums * x_scales[:, None] * scales

    return Weights(
        lambda x, tiles: fp8_linear.fp8_linear(x, weight, scales, **_tiled(tiles)), exact
    )


FP8 = Format(_fp8, 1.0)


@cache
def _fp8_as_served(outputs: int, inputs: int, device: torch.device) -> Weights:
    levels = fp8_linear.quantise_fp8(original(outputs, inputs, device))
    served = FP8Product(*levels, bias=None, batch_invariant=False)
    return Weights(lambda x, _: served(x), _fp8(outputs, inputs, device).exact)


FP8_AS_SERVED = Format(_fp8_as_served, 1.0)
"""FP8 as it is served: by the library where there are many rows."""


@dataclass(frozen=True)
class GGUFTiles(MatmulTiles):
    """parts: into how many the sum over the inputs is cut; 0: as many as it would be, were these
    tiles the present choice for few rows, or for many."""

    parts: int = 0
    few: bool = True

    def parts_of(self, rows: int, outputs: int, inputs: int) -> int:
        """Parts of the sum, as `gguf_linear` would choose them."""
        if self.parts:
            return self.parts
        most = GGUF_MANY.rows if self.few else self.rows
        columns = self.columns if self.few else GGUF_FEW.columns
        return gguf_parts(outputs, inputs, columns) if rows <= most else 1


def gguf(kind: str) -> Format:
    """A GGUF file's weights of that type."""

    @cache
    def load(outputs: int, inputs: int, device: torch.device) -> Weights:
        weights = of_a_gguf(kind, outputs, inputs, device)

        def multiply(x: Tensor, tiles: GGUFTiles | None) -> Tensor:
            if tiles is None:
                return gguf_linear(x, weights)
            return gguf_linear(
                x, weights, tiles=tiles, parts=tiles.parts_of(len(x), outputs, inputs)
            )

        return Weights(multiply, lambda x: x.float() @ gguf_rows(weights, None, torch.float32).T)

    return Format(load, empty(LAYOUTS[kind], 1, 1024, torch.device("meta")).nbytes / 1024)


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
