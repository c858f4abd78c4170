"""Packs what only some models have: recurrent layers, and what there is besides attention,
feed-forward and the norms around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import GatedDeltaSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.operands import NormWeights
from penstock_kernels.cpu.recurrent import Recurrent, RecurrentKind
from penstock_kernels.cpu.streams import CPUStreams
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.weights import (
    BesideNorms,
    CrossWeights,
    LayerInputsWeights,
    LayerInputWeights,
    LayerWeights,
    RecurrentWeights,
    StreamEndsWeights,
    StreamLayerWeights,
)
from penstock_worker.layers.attention import CROSS_NORM
from penstock_worker.layers.recurrent.gated_delta import feature_products
from penstock_worker.layers.recurrent.mixer_parts import conv_parts
from penstock_worker.models.decoder import POSITIONS
from penstock_worker.weights.weights import Weights

LANES = 16
"""Outputs that the kernels compute together."""
TABLE = "embed_tokens_per_layer"
OUTPUT_SCALE = "altup.output_scale.weight"


@dataclass(frozen=True)
class OptionalWeights:
    """What a model or a layer doesn't have is None."""

    config: ModelConfig
    weights: Weights
    kind: MatrixKind | None
    """Kind of matrices that are multiplied; None: each as the file has it."""
    matrix: Callable[..., PackedMatrix]
    """Makes a packed matrix of a name, outputs, inputs and `kind`."""
    norm: Callable[..., NormWeights]
    """Makes a norm's weights of a name and a size."""
    vector: Callable[[str, int], np.ndarray]

    def leave_keys(self, attention: str) -> None:
        """Some files have keys and values for layers that read another one's."""
        names = ("k_proj", "v_proj", "k_norm", "v_norm")
        unread = tuple(f"{attention}.{name}." for name in names)
        self.weights.ignore_those(lambda name: name.startswith(unread))

    def cross(self, at: str) -> CrossWeights | None:
        config, prefix = self.config, f"{at}.encoder_attn"
        if config.cross_attention is None:
            return None
        spec, hidden = config.layers[0].attention, config.hidden_size
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim

        def made(name: str, outputs: int) -> PackedMatrix:
            name = f"{prefix}.{name}"
            return self.matrix(name, outputs, hidden, kind=self.kind, bias=spec.qkv_bias)

        return CrossWeights(
            norm=self.norm(f"{at}.{CROSS_NORM}", hidden),
            query=made("q_proj", queries),
            key=made("k_proj", keys),
            value=made("v_proj", keys),
            output=self.matrix(
                f"{prefix}.o_proj", hidden, queries, kind=self.kind, bias=spec.output_bias
            ),
        )

    def positions(self) -> PackedMatrix | None:
        """The table of positions, with zeros for the rows of an encoder."""
        config = self.config
        count, rows = config.learned_positions, config.encoder_rows
        if not count:
            return None
        table = np.zeros((rows + count, config.hidden_size), dtype=np.float32)
        shape = (count, config.hidden_size)
        table[rows:] = self.weights.take(POSITIONS, shape, torch.float32).numpy()
        return pack("F32", table.view(np.uint8), table.shape, kind=MatrixKind.F32)

    def plain_norm(self, size: int) -> NormWeights:
        """The division by the root mean square."""
        return NormWeights(np.ones(size, dtype=np.float32), self.config.norm.eps)

    def beside(self, spec: LayerSpec, at: str) -> BesideNorms | None:
        experts, size = spec.feed_forward.experts, self.config.hidden_size
        if experts is None or not experts.beside:
            return None
        router = self.norm(f"{at}.mlp.router_norm", size)
        # What comes out of the norm is divided by the root of the size.
        weight = (router.weight * np.float32(size**-0.5)).astype(np.float32)
        return BesideNorms(
            router=replace(router, weight=weight),
            experts=self.norm(f"{at}.experts_norm", size),
            experts_output=self.norm(f"{at}.experts_output_norm", size),
            dense_output=self.norm(f"{at}.dense_output_norm", size),
        )

    def layer_inputs(self, table_kind: MatrixKind | None) -> LayerInputsWeights | None:
        """table_kind: of the table, whose rows are looked up."""
        spec = self.config.per_layer_inputs
        if spec is None:
            return None
        numbers = self.config.num_layers * spec.size
        return LayerInputsWeights(
            table=self.matrix(TABLE, spec.vocab_size, numbers, kind=table_kind),
            projection=self._product(
                "per_layer_model_projection", numbers, self.config.hidden_size
            ),
            norm=self.norm("per_layer_projection_norm", spec.size),
            size=spec.size,
        )

    def own_input(self, at: str) -> LayerInputWeights | None:
        spec, hidden = self.config.per_layer_inputs, self.config.hidden_size
        if spec is None:
            return None
        return LayerInputWeights(
            gate=self._product(f"{at}.per_layer_input_gate", spec.size, hidden),
            projection=self._product(f"{at}.per_layer_projection", hidden, spec.size),
            norm=self.norm(f"{at}.per_layer_input_norm", hidden),
        )

    def output_scale(self, spec: LayerSpec, at: str) -> float:
        return float(self.vector(f"{at}.output_scale.weight", 1)[0]) if spec.output_scale else 1.0

    def stream_ends(self) -> StreamEndsWeights | None:
        spec, hidden = self.config.streams, self.config.hidden_size
        if spec is None:
            return None

        def products(name: str) -> tuple[PackedMatrix, ...]:
            numbers = range(spec.count - 1)
            return tuple(self._product(f"{name}.{number}", hidden, hidden) for number in numbers)

        return StreamEndsWeights(
            beginnings=products("altup_projections"),
            endings=products("altup_unembed_projections"),
        )

    def stream_layer(self, at: str) -> StreamLayerWeights | None:
        spec, hidden = self.config.streams, self.config.hidden_size
        if spec is None:
            return None
        path = f"{at}.laurel"
        return StreamLayerWeights(
            coefficients=self._coefficients(at, spec.count, spec.active, scaled=spec.scaled),
            router_norm=self.norm(f"{at}.altup.router_norm", hidden),
            path_down=self._product(f"{path}.linear_left", spec.rank, hidden),
            path_up=self._product(f"{path}.linear_right", hidden, spec.rank),
            path_norm=self.norm(f"{path}.post_laurel_norm", hidden),
        )

    def _coefficients(self, at: str, count: int, active: int, *, scaled: bool) -> CPUStreams:
        hidden, name = self.config.hidden_size, f"{at}.{OUTPUT_SCALE}"
        plain = CPUStreams(count=count, active=active, width=hidden)
        scale = None
        if scaled:
            scale = np.zeros(plain.stride, dtype=np.float32)
            scale[:hidden] = self.vector(name, hidden)
        else:
            self.weights.ignore(name)
        return replace(
            plain,
            router=self._floats(f"{at}.altup.modality_router.weight", (count, hidden)),
            prediction=self._floats(f"{at}.altup.prediction_coefs.weight", (count * count, count)),
            correction=self._floats(f"{at}.altup.correction_coefs.weight", (count, count)),
            output_scale=scale,
        )

    def _product(self, name: str, outputs: int, inputs: int) -> PackedMatrix:
        return self.matrix(name, outputs, inputs, kind=self.kind)

    def _floats(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        # What they make decides about every number of a residual, and they are small.
        return np.ascontiguousarray(self.weights.take(name, shape, torch.float32).numpy())


UNCHANGING_EPS, UNCHANGING_WEIGHT = 2.0**100, 2.0**50
"""Make a norm that changes no bit of its input: the mean of squares vanishes beside the epsilon,
whose root the weight is, and a power of two only moves exponents. Of numbers between 2 ** -76 and
2 ** 38 in size, and of zeros, that holds; other ones lose bits or their squares count."""


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
        if isinstance(spec, Mamba2Spec):
            return self._mamba2(spec)
        raise TypeError(f"the kernels have no layers of {spec}")

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
            by_channel=bool(spec.rank),
            logistic_gate=bool(spec.rank),
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
            made.append((self._matrix(name, outputs, inputs, bias=False), source, first))
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
