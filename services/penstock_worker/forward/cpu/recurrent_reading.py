"""Packs the weights of recurrent layers for the CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from penstock.model.recurrent_spec import GatedDeltaSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix
from penstock_kernels.cpu.recurrent import Recurrent, RecurrentKind
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.weights import LayerWeights, RecurrentWeights
from penstock_worker.layers.recurrent.mixers import feature_products

LANES = 16
"""Outputs that the kernels compute together."""


@dataclass(frozen=True)
class RecurrentReader:
    """Reads what stands in the attention's place in one recurrent layer."""

    packing: CPUPacking
    kind: MatrixKind | None
    """Kind of all matrices, as CPUWeights has it; None: each as the file has it."""
    hidden: int
    norm_eps: float
    prefix: str

    def read(self, spec: RecurrentSpec) -> LayerWeights:
        if isinstance(spec, ShortConvSpec):
            return self._short_conv(spec)
        if isinstance(spec, GatedDeltaSpec):
            return self._gated_delta(spec)
        return self._mamba2(spec)

    def _short_conv(self, spec: ShortConvSpec) -> LayerWeights:
        width, bias = spec.width, spec.bias
        layer = Recurrent(
            kind=RecurrentKind.SHORT_CONV,
            width=width,
            first=2 * width,
            gate=0,
            strength=width,
            conv=self._conv(spec),
            conv_bias=self._vector("conv.bias", width) if bias else None,
        )
        return self._whole([("in_proj", 3 * width)], layer, bias=bias)

    def _gated_delta(self, spec: GatedDeltaSpec) -> LayerWeights:
        names = feature_products(self.packing.weights.has, self.prefix, spec)
        starts = _starts([outputs for _, outputs in names])
        # Queries, keys and values; the gate; and then strengths and steps in time.
        columns = {}
        for (name, _), start in zip(names, starts, strict=False):
            columns[name.removeprefix(f"{self.prefix}.")] = start
        strength = columns.get("in_proj_ba", columns.get("in_proj_b", 0))
        layer = Recurrent(
            kind=RecurrentKind.GATED_DELTA,
            width=spec.values,
            first=0,
            gate=columns.get("in_proj_z", spec.channels),
            strength=strength,
            time=columns.get("in_proj_a", strength + spec.value_heads),
            key_heads=spec.key_heads,
            heads=spec.value_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            tiled=spec.tiled,
            norm_eps=self.norm_eps,
            conv=self._conv(spec),
            rate=self._rate(spec.value_heads),
            time_bias=self._vector("dt_bias", spec.value_heads),
            norm=self._vector("norm.weight", spec.value_dim),
        )
        own = [(name.removeprefix(f"{self.prefix}."), outputs) for name, outputs in names]
        return self._whole(own, layer, bias=False)

    def _mamba2(self, spec: Mamba2Spec) -> LayerWeights:
        features = spec.inner + spec.channels + spec.heads
        layer = Recurrent(
            kind=RecurrentKind.MAMBA2,
            width=spec.inner,
            first=spec.inner,
            gate=0,
            time=spec.inner + spec.channels,
            key_heads=spec.groups,
            heads=spec.heads,
            key_dim=spec.state,
            value_dim=spec.head_dim,
            norm_groups=spec.norm_groups,
            steps=(spec.time_step_min, spec.time_step_max),
            norm_eps=self.norm_eps,
            conv=self._conv(spec),
            conv_bias=self._vector("conv.bias", spec.channels) if spec.conv_bias else None,
            rate=self._rate(spec.heads),
            time_bias=self._vector("dt_bias", spec.heads),
            skip=self._vector("D", spec.heads),
            norm=self._vector("norm.weight", spec.inner),
        )
        return self._whole([("in_proj", features)], layer, bias=spec.bias)

    def _whole(
        self, products: Sequence[tuple[str, int]], layer: Recurrent, *, bias: bool
    ) -> LayerWeights:
        *starts, end = _starts([outputs for _, outputs in products])
        made = [self._matrix(name, outputs, self.hidden, bias=bias) for name, outputs in products]
        # A vector of gates may be read beyond the last one.
        weights = RecurrentWeights(
            products=tuple(zip(made, starts, strict=True)), features=end + LANES, layer=layer
        )
        output = self._matrix("out_proj", self.hidden, layer.width, bias=bias)
        return LayerWeights(output=output, recurrent=weights)

    def _matrix(self, name: str, outputs: int, inputs: int, *, bias: bool) -> PackedMatrix:
        return self.packing.matrix(
            f"{self.prefix}.{name}", outputs, inputs, kind=self.kind, bias=bias
        )

    def _vector(self, name: str, size: int) -> np.ndarray:
        return self.packing.vector(f"{self.prefix}.{name}", size)

    def _conv(self, spec: RecurrentSpec) -> np.ndarray:
        """Reads the convolution's weights as [kernel, channels]."""
        shape = (spec.channels, 1, spec.kernel)
        stored = self.packing.tensor(f"{self.prefix}.conv.weight", shape)
        return np.ascontiguousarray(stored[:, 0].T)

    def _rate(self, heads: int) -> np.ndarray:
        """A file has each head's rate of decay, or the logarithm of its size."""
        if self.packing.weights.has(f"{self.prefix}.A"):
            return self._vector("A", heads)
        return -np.exp(self._vector("A_log", heads))


def _starts(sizes: Sequence[int]) -> list[int]:
    """Columns at which products of so many outputs begin, each at a whole tile; and the end."""
    return [0, *accumulate(-(-size // LANES) * LANES for size in sizes)]
