"""DecoderOps computed on CUDA.

By default, products are cuBLAS's. It chooses a kernel by the number of rows, so a row's last bits
may depend on how many others there are. With `batch_invariant`, they are computed by Triton kernels
with one order of sums. All other operations here are invariant in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear as library_linear

from penstock.model.layer_spec import FeedForwardSpec
from penstock.model.recurrent_spec import RecurrentSpec
from penstock_kernels.triton.linear.dense import linear
from penstock_kernels.triton.linear.per_head import per_head
from penstock_kernels.triton.rowwise import activation, as_large, norms
from penstock_worker.layers.level_experts import ExpertHost
from penstock_worker.layers.parts import LayerExperts, Parts, Recurrence
from penstock_worker.layers.reference_ops import TensorTable
from penstock_worker.layers.triton_experts import TritonExperts
from penstock_worker.layers.triton_recurrence import TritonRecurrence
from penstock_worker.quantisation.interface import KeptMatrix, Product, Table
from penstock_worker.quantisation.registry import QUANTIZATIONS, check_quantization
from penstock_worker.weights.weights import Matrix, Stacked, rows_of


@dataclass(frozen=True)
class LibraryProduct:
    """A cuBLAS product, accumulated in float32. With split-K, partial sums may be rounded to a
    lower precision (torch's default). float32 stays float32 (no TF32)."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return library_linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class InvariantProduct:
    """A product with one order of sums, whatever the number of rows."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class LibraryLogits:
    """A cuBLAS product whose float32 sums aren't rounded to the weights' dtype."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.dtype != torch.float32:
            return torch.mm(x, self.weight.T, out_dtype=torch.float32)
        # Of 16 bits, torch has this on CUDA only.
        return library_linear(x.float(), self.weight.float())


@dataclass(frozen=True)
class InvariantLogits:
    """A product with one order of sums, whatever the number of rows, with results in float32."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, dtype=torch.float32)


@dataclass(frozen=True)
class WideProduct:
    """A product with weights whose dtype may be wider than the activations'; computed in the
    weights' dtype."""

    product: Product
    weight_dtype: torch.dtype
    """Dtype of the weights, in which the product is computed."""
    dtype: torch.dtype | None
    """Dtype of the result; None for the input's."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x.to(self.weight_dtype)).to(self.dtype or x.dtype)


@dataclass(frozen=True)
class JoinedProduct:
    """Several products of the same input, whose outputs are concatenated."""

    products: tuple[Product, ...]

    def __call__(self, x: Tensor) -> Tensor:
        found = [product(x) for product in self.products]
        return found[0] if len(found) == 1 else torch.cat(found, 1)


class TritonOps:
    """Matrices that are quantised in the file, or stacked from pieces of several types, keep their
    types. Logits are float32."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        batch_invariant: bool = False,
        quantization: str = "none",
        expert_host: ExpertHost | None = None,
    ) -> None:
        """`dtype` is that of activations, and of weights that aren't quantised. `quantization`
        applies to the layers' matrices; embedding, head and norms stay in `dtype`, because they
        have few bytes and matter much. `expert_host`: of the model's layers, whose experts then
        have a CPU's bits wherever they are; None: all are on the card, as other matrices are.

        Raises StartupError for a quantization that is unknown, or that the device can't compute.
        """
        check_quantization(quantization, device)
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = False
        self._device = device
        self._dtype = dtype
        self._batch_invariant = batch_invariant
        self._quantization = QUANTIZATIONS.get(quantization)
        self._expert_host = expert_host

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        """`weight` is [outputs, inputs], `bias` [outputs]; of any float dtype, on any device."""
        if not isinstance(weight, Tensor):
            return self._as_it_is(weight, bias)
        if bias is not None:
            bias = bias.to(self._device, self._dtype)
        if self._quantization is not None:
            weight = weight.to(self._device)
            quantised = self._quantization.triton(weight, bias, self._batch_invariant)
            if quantised is not None:
                return quantised
        return self._plain(weight, bias)

    def per_head(self, weights: Tensor) -> Product:
        """With one order of sums in any case."""
        held = weights.to(self._device, self._dtype).contiguous()
        return lambda x: per_head(x, held)

    def table(self, weight: Matrix) -> Table:
        if isinstance(weight, Stacked):
            (weight,) = weight.pieces
        if isinstance(weight, Tensor):
            return TensorTable(weight, self._dtype)
        return weight.table(self._dtype)

    def head(self, weight: Matrix) -> Product:
        if not isinstance(weight, Tensor):
            return self._as_it_is(weight, None, torch.float32)
        kind = InvariantLogits if self._batch_invariant else LibraryLogits
        return kind(weight.to(self._device, self._dtype))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.add_rms_norm(x, residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return norms.layer_norm(x, weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        return norms.add_layer_norm(x, residual, weight, bias, eps)

    def activate(self, x: Tensor, kind: str, *, gated: bool, limit: float | None = None) -> Tensor:
        if limit is not None:
            raise ValueError("these kernels have no bounds of a feed-forward's gate")
        return activation.gated(x, kind) if gated else activation.activate(x, kind)

    def sparse_gate(self, gate_up: Tensor, share: float) -> Tensor:
        return activation.sparse_gate(gate_up, share)

    def as_large(self, x: Tensor, as_what: Tensor, least: float) -> Tensor:
        return as_large.as_large(x.contiguous(), as_what.contiguous(), least)

    def experts(self, parts: Parts, feed_forward: FeedForwardSpec, prefix: str) -> LayerExperts:
        if self._expert_host is not None:
            return self._expert_host.load(parts, feed_forward, prefix)
        return TritonExperts.load(
            parts, feed_forward, prefix, self._dtype, batch_invariant=self._batch_invariant
        )

    def recurrence(self, parts: Parts, layer: int, spec: RecurrentSpec) -> Recurrence:
        return TritonRecurrence.load(parts, layer, spec)

    def _plain(self, weight: Tensor, bias: Tensor | None) -> Product:
        weight = weight.to(self._device, self._dtype)
        return self._of_floats(weight, bias)

    def _of_floats(self, weight: Tensor, bias: Tensor | None) -> Product:
        kind = InvariantProduct if self._batch_invariant else LibraryProduct
        return kind(weight, bias)

    def _as_it_is(
        self,
        weight: KeptMatrix | Stacked,
        bias: Tensor | None,
        dtype: torch.dtype | None = None,
    ) -> Product:
        pieces = weight.pieces if isinstance(weight, Stacked) else (weight,)
        sizes = [rows_of(piece) for piece in pieces]
        biases = [None] * len(pieces) if bias is None else bias.to(self._device).split(sizes)
        found = [self._piece(*each, dtype) for each in zip(pieces, biases, strict=True)]
        return found[0] if len(found) == 1 else JoinedProduct(tuple(found))

    def _piece(
        self, piece: Tensor | KeptMatrix, bias: Tensor | None, dtype: torch.dtype | None
    ) -> Product:
        if not isinstance(piece, Tensor):
            return piece.product(bias, dtype, batch_invariant=self._batch_invariant)
        added = None if bias is None else bias.to(piece.dtype)
        return WideProduct(self._of_floats(piece, added), piece.dtype, dtype)
