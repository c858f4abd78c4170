"""Several residuals, of which each layer computes one (Baykal et al., "Alternating updates for
efficient transformers", 2023), with a low-rank path parallel to attention (Menghani et al.,
"LAuReL", 2024), as in Gemma 3n."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.model.layer_spec import StreamsSpec
from penstock_kernels.reference import soft_cap
from penstock_worker.layers.parts import Norm, Ops, Parts
from penstock_worker.quantisation.interface import Product

if TYPE_CHECKING:
    from torch import Tensor

LEAST_SQUARE = 1e-5
"""Mean square that a stream is taken to have at least when it is scaled."""


class Streams:
    """The two ends: one residual becomes several, and several become one."""

    def __init__(self, ops: Ops, beginnings: list[Product], endings: list[Product]) -> None:
        """Products: for each stream but the first, [rows, hidden] to the same shape."""
        self._ops = ops
        self._beginnings = beginnings
        self._endings = endings

    def begin(self, rows: Tensor) -> Tensor:
        """Maps embeddings, [rows, hidden], to [streams, rows, hidden]."""
        others = [self._as_large(each(rows), rows) for each in self._beginnings]
        return torch.stack([rows, *others])

    def end(self, streams: Tensor) -> Tensor:
        """Maps [streams, rows, hidden] to what stands after the last layer, [rows, hidden]."""
        total = first = streams[0]
        for each, other in zip(self._endings, streams[1:], strict=True):
            total = total + self._as_large(each(other), first)
        return total / len(streams)

    def _as_large(self, x: Tensor, as_what: Tensor) -> Tensor:
        return self._ops.as_large(x, as_what, LEAST_SQUARE)

    @staticmethod
    def load(parts: Parts, spec: StreamsSpec) -> Streams:
        size = parts.config.hidden_size

        def products(name: str) -> list[Product]:
            return [
                parts.product([(f"{name}.{number}", size)], size, bias=False)
                for number in range(spec.count - 1)
            ]

        return Streams(
            parts.ops, products("altup_projections"), products("altup_unembed_projections")
        )


class StreamUpdate:
    """A layer's prediction of all streams, and its correction by the one that was computed."""

    def __init__(
        self,
        norm: Norm,
        router: Product,
        prediction: Product,
        correction: Product,
        spec: StreamsSpec,
    ) -> None:
        """`router` maps [rows, hidden], normalised, to [rows, streams], of which `prediction` makes
        [rows, streams * streams] and `correction` [rows, streams]."""
        self._norm = norm
        self._router = router
        self._prediction = prediction
        self._correction = correction
        self._spec = spec

    def predict(self, streams: Tensor) -> Tensor:
        """Maps [streams, rows, hidden] to the same shape."""
        count = len(streams)
        routed = self._routed(streams[self._spec.active])
        mixing = self._prediction(routed).float().unflatten(-1, (count, count))
        predicted = []
        for number, stream in enumerate(streams):
            total = stream.float()
            for other in range(count):
                total = total + streams[other].float() * mixing[:, number, other, None]
            predicted.append(total.to(stream.dtype))
        return torch.stack(predicted)

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """Maps the prediction and the stream that was computed, [rows, hidden], to [streams, rows,
        hidden]."""
        shares = self._correction(self._routed(computed)).float() + 1.0
        change = computed.float() - predicted[self._spec.active].float()
        corrected = predicted.float() + change * shares.t()[..., None]
        return corrected.to(predicted.dtype)

    def _routed(self, stream: Tensor) -> Tensor:
        """Returns [rows, streams], between -1 and 1."""
        raw = self._router(self._norm(stream) * stream.shape[-1] ** -1.0)
        return soft_cap(raw.float(), 1.0).to(stream.dtype)

    @staticmethod
    def load(parts: Parts, layer: int, spec: StreamsSpec) -> StreamUpdate:
        prefix, size, count = f"layers.{layer}.altup", parts.config.hidden_size, spec.count

        def product(name: str, outputs: int, inputs: int) -> Product:
            return parts.product([(f"{prefix}.{name}", outputs)], inputs, bias=False)

        return StreamUpdate(
            parts.norm(f"{prefix}.router_norm", size),
            product("modality_router", count, size),
            product("prediction_coefs", count * count, count),
            product("correction_coefs", count, count),
            spec,
        )


class LowRankPath:
    """Maps [rows, hidden], normalised, to itself and a product of low rank, [rows, hidden]."""

    def __init__(self, down: Product, up: Product, norm: Norm) -> None:
        self._down = down
        self._up = up
        self._norm = norm

    def __call__(self, hidden: Tensor) -> Tensor:
        return hidden + self._norm(self._up(self._down(hidden)))

    @staticmethod
    def load(parts: Parts, layer: int, spec: StreamsSpec) -> LowRankPath:
        prefix, size = f"layers.{layer}.laurel", parts.config.hidden_size
        return LowRankPath(
            parts.product([(f"{prefix}.linear_left", spec.rank)], size, bias=False),
            parts.product([(f"{prefix}.linear_right", size)], spec.rank, bias=False),
            parts.norm(f"{prefix}.post_laurel_norm", size),
        )
