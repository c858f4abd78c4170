"""The gated short convolution of LFM2 (Liquid AI, 2025)."""

from __future__ import annotations

from torch import Tensor

from penstock.model.recurrent_spec import ShortConvSpec
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.recurrent.parts import NAME, Convolution, divided, own_part
from penstock_worker.quantisation.interface import Product


class ShortConv:
    """A Mixer. Features are two gates and the input, [rows, 3 * width]: that of the convolution's
    input, that of its result, and what is convolved."""

    def __init__(
        self, spec: ShortConvSpec, inputs: Product, conv: Convolution, output: Product
    ) -> None:
        self.spec = spec
        self.conv = conv
        self._inputs = inputs
        self._output = output

    def project(self, hidden: Tensor) -> Tensor:
        return self._inputs(hidden)

    def scan(self, features: Tensor, state: Tensor) -> Tensor:
        gate, _, x = features.float().chunk(3, -1)
        return self.conv(gate * x, divided(state, self.spec)[0])

    def finish(self, mixed: Tensor, features: Tensor) -> Tensor:
        gate = features.chunk(3, -1)[1]
        return self._output((gate.float() * mixed).to(features.dtype))

    @staticmethod
    def load(parts: Parts, layer: int, spec: ShortConvSpec) -> ShortConv:
        prefix, hidden = f"layers.{layer}.{NAME}", parts.config.hidden_size
        return ShortConv(
            own_part(parts, spec)[0],
            parts.product([(f"{prefix}.in_proj", 3 * spec.width)], hidden, bias=spec.bias),
            Convolution.load(parts, prefix, spec, bias=spec.bias),
            parts.summed(f"{prefix}.out_proj", hidden, spec.width, bias=spec.bias),
        )
