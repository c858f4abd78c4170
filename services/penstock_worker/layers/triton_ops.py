"""The CUDA kernels as Ops.

Products by default are cuBLAS's, which chooses its kernel by the number of rows: a row's last bits
may then depend on how many others there are.  batch_invariant takes this project's own, of one
shape for all, and so does everything else here anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear as library_linear

from penstock import logs
from penstock.errors import StartupError
from penstock_kernels.triton.linear.dense import linear
from penstock_kernels.triton.linear.dequantise import dequantise
from penstock_kernels.triton.linear.fp8_linear import fp8_linear, quantise_fp8
from penstock_kernels.triton.linear.gguf_linear import gguf_linear, gguf_rows
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.linear.weight_only import (
    GROUPS,
    PackedWeights,
    pack,
    weight_only_linear,
)
from penstock_kernels.triton.rowwise import gated, rms_norm
from penstock_worker.layers.ops import Product, Table
from penstock_worker.layers.reference_ops import TensorTable
from penstock_worker.weights.matrix import Matrix, Stacked, rows_of

log = logs.get(__name__)

QUANTIZATIONS = ("none", "int8", "int4", "fp8")
_BITS = {"int8": 8, "int4": 4}

MANY_ROWS = 128
"""From here on packed weights are unpacked first: their kernel reads a weight once for each 16
rows, and unpacking costs as much as reading it about 5 times.  Still to be measured."""

UNPACKED_ROWS = 256
"""The same for a GGUF file's weights, whose kernel decodes one once for each 64 rows. Still to be
measured."""


@dataclass(frozen=True)
class LibraryProduct:
    """cuBLAS: float32 sums; where it cuts a sum into parts, these may be rounded, too (torch's
    default).  float32 stays float32 (no TF32)."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return library_linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class InvariantProduct:
    """One tile shape and one order of sums, whatever the number of rows."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class PackedProduct:
    """Weights of 8 or 4 bits, activations as they are.  many_rows: from how many rows on weights
    are unpacked, and rounded to x's dtype; None: never, so that all rows get the same bits."""

    weights: PackedWeights
    bias: Tensor | None
    many_rows: int | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.many_rows is not None and x.shape[0] >= self.many_rows:
            return library_linear(x, dequantise(self.weights, x.dtype), self.bias)
        return weight_only_linear(x, self.weights, self.bias)


@dataclass(frozen=True)
class FP8Product:
    """Weights and activations in FP8 e4m3, a scale for each output and each row."""

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return fp8_linear(x, self.weight, self.scales, self.bias)


@dataclass(frozen=True)
class GGUFProduct:
    """Weights as a GGUF file has them, none rounded; but from many_rows rows on they are unpacked,
    and rounded to x's dtype.  None: never.  dtype: of the result, default x's."""

    weights: GGUFWeights
    bias: Tensor | None
    dtype: torch.dtype | None
    batch_invariant: bool
    many_rows: int | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.many_rows is not None and x.shape[0] >= self.many_rows:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return library_linear(x, gguf_rows(self.weights, None, x.dtype), bias)
        return gguf_linear(
            x,
            self.weights,
            self.bias,
            dtype=self.dtype,
            batch_invariant=self.batch_invariant,
        )


@dataclass(frozen=True)
class GGUFTable:
    weights: GGUFWeights
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        return self.weights.outputs

    def __call__(self, ids: Tensor) -> Tensor:
        return gguf_rows(self.weights, ids, self.dtype)


@dataclass(frozen=True)
class WideProduct:
    """Of weights that may be of a wider type than activations: computed in theirs."""

    product: Product
    weight_dtype: torch.dtype
    dtype: torch.dtype | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x.to(self.weight_dtype)).to(self.dtype or x.dtype)


@dataclass(frozen=True)
class JoinedProduct:
    """Products of one input, side by side."""

    products: tuple[Product, ...]

    def __call__(self, x: Tensor) -> Tensor:
        found = [product(x) for product in self.products]
        return found[0] if len(found) == 1 else torch.cat(found, 1)


class TritonOps:
    """dtype: of activations, and of weights that aren't quantised.  quantization: of the layers'
    matrices; embedding, head and norms stay in dtype, as few bytes that matter much.  Matrices that
    come quantised, or as pieces of several types, stay what they are, and their logits are
    float32; a plain head's are rounded to dtype, as its products are.

    Raises StartupError for a quantization that is unknown, or that the device can't compute.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        batch_invariant: bool = False,
        quantization: str = "none",
    ) -> None:
        check_quantization(quantization, device)
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = False
        self._device = device
        self._dtype = dtype
        self._batch_invariant = batch_invariant
        self._quantization = quantization

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        """weight: [outputs, inputs], bias: [outputs]; any float dtype, on any device."""
        if not isinstance(weight, Tensor):
            return self._as_it_is(weight, bias)
        if bias is not None:
            bias = bias.to(self._device, self._dtype)
        if self._quantization == "fp8":
            return FP8Product(*quantise_fp8(weight.to(self._device).contiguous()), bias)
        if self._quantization == "none":
            return self._plain(weight, bias)
        group = _group(weight.shape[1])
        if group is None:
            log.warning(
                "a matrix stays unquantised: no group of weights divides its inputs",
                quantization=self._quantization,
                outputs=weight.shape[0],
                inputs=weight.shape[1],
                groups=GROUPS,
            )
            return self._plain(weight, bias)
        packed = pack(weight.to(self._device), bits=_BITS[self._quantization], group=group)
        return PackedProduct(packed, bias, None if self._batch_invariant else MANY_ROWS)

    def table(self, weight: Matrix) -> Table:
        if isinstance(weight, Stacked):
            (weight,) = weight.pieces
        if isinstance(weight, GGUFWeights):
            return GGUFTable(weight, self._dtype)
        return TensorTable(weight, self._dtype)

    def head(self, weight: Matrix) -> Product:
        if not isinstance(weight, Tensor):
            return self._as_it_is(weight, None, torch.float32)
        return self._plain(weight, None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.add_rms_norm(x, residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return gated.silu_mul(gate_up)

    def _plain(self, weight: Tensor, bias: Tensor | None) -> Product:
        weight = weight.to(self._device, self._dtype)
        return self._of_floats(weight, bias)

    def _of_floats(self, weight: Tensor, bias: Tensor | None) -> Product:
        kind = InvariantProduct if self._batch_invariant else LibraryProduct
        return kind(weight, bias)

    def _as_it_is(
        self,
        weight: GGUFWeights | Stacked,
        bias: Tensor | None,
        dtype: torch.dtype | None = None,
    ) -> Product:
        pieces = weight.pieces if isinstance(weight, Stacked) else (weight,)
        sizes = [rows_of(piece) for piece in pieces]
        biases = [None] * len(pieces) if bias is None else bias.to(self._device).split(sizes)
        found = [self._piece(*each, dtype) for each in zip(pieces, biases, strict=True)]
        return found[0] if len(found) == 1 else JoinedProduct(tuple(found))

    def _piece(
        self, piece: Tensor | GGUFWeights, bias: Tensor | None, dtype: torch.dtype | None
    ) -> Product:
        if isinstance(piece, GGUFWeights):
            # Logits would be rounded to x's dtype too.
            exact = self._batch_invariant or dtype is not None
            many = None if exact else UNPACKED_ROWS
            return GGUFProduct(piece, bias, dtype, self._batch_invariant, many)
        added = None if bias is None else bias.to(piece.dtype)
        return WideProduct(self._of_floats(piece, added), piece.dtype, dtype)


def check_quantization(quantization: str, device: torch.device) -> None:
    """Raises StartupError unless products on `device` can be quantised so."""
    if quantization not in QUANTIZATIONS:
        raise StartupError(
            f"quantization is {quantization!r}; allowed on CUDA are {', '.join(QUANTIZATIONS)}"
        )
    if quantization != "fp8" or device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 9):
        raise StartupError(
            f"quantization is fp8, which needs a GPU of compute capability 8.9 or higher; "
            f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}, and can "
            "do none, int8, int4"
        )


def _group(inputs: int) -> int | None:
    """The largest group that divides a row of weights."""
    return max((group for group in GROUPS if inputs % group == 0), default=None)
