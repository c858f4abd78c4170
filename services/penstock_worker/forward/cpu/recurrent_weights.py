"""Packs what stands in the attention's place in recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba1Spec,
    Mamba2Spec,
    RecurrentSpec,
    ShortConvSpec,
)
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix
from penstock_kernels.cpu.operands import NormWeights
from penstock_kernels.cpu.recurrent import Recurrent, RecurrentKind
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.weights import FurtherFeatures, LayerWeights, RecurrentWeights
from penstock_worker.layers.recurrent.gated_delta import feature_products
from penstock_worker.layers.recurrent.mamba1 import time_bias_name
from penstock_worker.layers.recurrent.mixer_parts import conv_parts

LANES = 16
"""Outputs that the kernels compute together."""
UNCHANGING_EPS, UNCHANGING_WEIGHT = 2.0**100, 2.0**50
"""Make a norm that changes no bit of its input: the mean of squares vanishes against the epsilon,
whose root the weight is, and a power of two only moves exponents. Of numbers between 2 ** -76 and 2
** 38 in size, and of zeros, that holds; other ones lose bits or their squares count."""


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
        if isinstance(spec, Mamba1Spec):
            return self._mamba1(spec)
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
        further: list[tuple[str, int]] = []
        if spec.rank:
            further = [("in_proj_a", spec.times), ("in_proj_z", spec.values)]
            places = _starts([outputs for _, outputs in further])
            columns |= {
                name: starts[-1] + place for (name, _), place in zip(further, places, strict=False)
            }
        strength = columns.get("in_proj_ba", columns.get("in_proj_b", 0))
        layer = Recurrent(
            kind=RecurrentKind.GATED_DELTA,
            width=spec.values,
            first=0,
            apart=(columns["in_proj_k"], columns["in_proj_v"]) if "in_proj_k" in columns else None,
            gate=columns.get("in_proj_z", spec.channels),
            strength=strength,
            time=columns.get("in_proj_a", strength + spec.value_heads),
            by_channel=spec.by_channel,
            logistic_gate=spec.by_channel,
            decay_bound=spec.lowest,
            strongest=spec.strongest,
            key_heads=spec.key_heads,
            heads=spec.value_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            tiled=spec.tiled,
            norm_eps=self.norm_eps if spec.norm_eps is None else spec.norm_eps,
            conv=self._conv(spec),
            rate=self._rate(spec.value_heads),
            time_bias=self._vector("dt_bias", spec.times),
            norm=self._vector("norm.weight", spec.value_dim),
        )
        own = [(name.removeprefix(f"{self.prefix}."), outputs) for name, outputs in names]
        found = self._whole(own, layer, bias=False)
        return self._with_further(found, further, columns, spec.rank) if further else found

    def _with_further(
        self,
        found: LayerWeights,
        products: Sequence[tuple[str, int]],
        columns: Mapping[str, int],
        inputs: int,
    ) -> LayerWeights:
        """Adds products that make features of so many others. products: their names and outputs.
        columns: of all features, by the name of what makes them."""
        if found.recurrent is None:
            raise ValueError("a layer that isn't recurrent makes no features")
        features, made = found.recurrent.features, []
        for name, outputs in products:
            source, first = columns[f"{name}_down"], columns[name]
            matrix = self._matrix(name, outputs, inputs, bias=False)
            made.append(FurtherFeatures(matrix, source, first))
            # A vector of gates may be read beyond the last one.
            features = max(features, first + -(-outputs // LANES) * LANES + LANES)
        recurrent = replace(found.recurrent, further=tuple(made), features=features)
        return replace(found, recurrent=recurrent)

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
            norm_eps=self.norm_eps if spec.normed else UNCHANGING_EPS,
            conv=self._conv(spec),
            conv_bias=self._vector("conv.bias", spec.channels) if spec.conv_bias else None,
            rate=self._rate(spec.heads),
            time_bias=self._vector("dt_bias", spec.heads),
            skip=self._vector("D", spec.heads),
            norm=self._vector("norm.weight", spec.inner)
            if spec.normed
            else np.full(spec.inner, UNCHANGING_WEIGHT, np.float32),
        )
        return self._whole([("in_proj", features)], layer, bias=spec.bias)

    def _mamba1(self, spec: Mamba1Spec) -> LayerWeights:
        """Inputs and gates; the vector that steps in time are made of, and both maps; and steps."""
        small = spec.rank + 2 * spec.state
        _, selected, times, end = _starts([2 * spec.inner, small, spec.inner])
        norms = self._norms(spec)
        layer = Recurrent(
            kind=RecurrentKind.MAMBA1,
            width=spec.inner,
            first=0,
            gate=spec.inner,
            strength=selected + spec.rank,
            time=times,
            key_heads=1,
            heads=1,
            key_dim=spec.state,
            value_dim=spec.inner,
            norm_eps=spec.norm_eps,
            conv=self._conv(spec),
            conv_bias=self._vector("conv.bias", spec.inner) if spec.conv_bias else None,
            rate=np.ascontiguousarray(
                self._rate(spec.inner * spec.state).reshape(spec.inner, spec.state).T
            ),
            time_bias=self.packing.vector(
                time_bias_name(self.packing.weights.has, self.prefix), spec.inner
            ),
            skip=self._vector("D", spec.inner),
            norm=None if norms is None else np.concatenate(norms[1:]),
        )
        found = self._whole([("in_proj", 2 * spec.inner)], layer, bias=spec.bias)
        of_times = None if norms is None else NormWeights(norms[0], spec.norm_eps, "rms", None)
        further = (
            FurtherFeatures(self._matrix("x_proj", small, spec.inner, bias=False), 0, selected),
            FurtherFeatures(
                self._matrix("dt_proj", spec.inner, spec.rank, bias=False),
                selected,
                times,
                of_times,
            ),
        )
        if found.recurrent is None:
            raise ValueError("a layer that isn't recurrent makes no features")
        recurrent = replace(
            found.recurrent, further=further, of_convolved=True, features=end + LANES
        )
        return replace(found, recurrent=recurrent)

    def _norms(self, spec: Mamba1Spec) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Weights of the norms of the vector that steps are made of, and of both maps."""
        sizes = spec.rank, spec.state, spec.state
        if spec.norms == "none":
            return None
        if spec.norms == "plain":
            steps, into, out_of = (np.ones(size, np.float32) for size in sizes)
            return steps, into, out_of
        names = ("dt_norm", "b_norm", "c_norm")
        steps, into, out_of = (
            self._vector(f"{name}.weight", size) for name, size in zip(names, sizes, strict=True)
        )
        return steps, into, out_of

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
        if isinstance(spec, GatedDeltaSpec) and self.packing.weights.has(
            f"{self.prefix}.q_conv.weight"
        ):
            parts = [(f"{self.prefix}.{name}.weight", size) for name, size in conv_parts(spec)]
            taken = [self.packing.tensor(name, (size, 1, spec.kernel)) for name, size in parts]
            return np.ascontiguousarray(np.concatenate(taken)[:, 0].T)
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
