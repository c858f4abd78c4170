"""Packs what only some models have: what there is besides attention, feed-forward and the norms
around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from penstock.model.config import ModelConfig
from penstock.model.layer_spec import HyperConnectionsSpec, LayerSpec
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.operands import NormWeights
from penstock_kernels.cpu.streams import CPUMixing, CPUStreams
from penstock_worker.forward.cpu.weights import (
    BesideNorms,
    CrossWeights,
    LayerInputsWeights,
    LayerInputWeights,
    StreamEndsWeights,
    StreamLayerWeights,
)
from penstock_worker.layers.attention import CROSS_NORM
from penstock_worker.models.decoder import POSITIONS, PROJECTION, TYPES
from penstock_worker.weights.weights import Weights

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
        if config.embedding_norm:  # As fine as the embeddings, which are normalised with them.
            shape = (config.first_position + count, config.row_of_embedding)
            return self.matrix(POSITIONS.removesuffix(".weight"), *shape, kind=self.kind)
        table = np.zeros((rows + count, config.hidden_size), dtype=np.float32)
        shape = (count, config.hidden_size)
        table[rows:] = self.weights.array(POSITIONS, shape)
        return pack("F32", table.view(np.uint8), table.shape, kind=MatrixKind.F32)

    def types(self) -> PackedMatrix | None:
        config = self.config
        if not config.token_types:
            return None
        shape = (config.token_types, config.row_of_embedding)
        return self.matrix(TYPES.removesuffix(".weight"), *shape, kind=self.kind)

    def projection(self) -> PackedMatrix | None:
        """Returns what makes the layers' rows of embeddings; None: embeddings are such rows."""
        config = self.config
        if not config.embedding_size:
            return None
        shape = (config.hidden_size, config.embedding_size)
        return self.matrix(PROJECTION, *shape, kind=self.kind, bias=True)

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

    def mixing_ends(self) -> CPUMixing | None:
        spec = self.config.hyper_connections
        return None if spec is None else self._mixing("hc_head", spec, rounds=0)

    def mixing_layer(self, at: str) -> tuple[CPUMixing, CPUMixing] | None:
        spec = self.config.hyper_connections
        if spec is None:
            return None
        first, second = (
            self._mixing(f"{at}.{half}_hc", spec, rounds=spec.rounds) for half in ("attn", "ffn")
        )
        return first, second

    def _mixing(self, prefix: str, spec: HyperConnectionsSpec, *, rounds: int) -> CPUMixing:
        hidden, count = self.config.hidden_size, spec.count
        logits = count * (2 + count) if rounds else count
        return CPUMixing(
            count=count,
            width=hidden,
            rounds=rounds,
            eps=spec.eps,
            norm_eps=self.config.norm.eps,
            product=self._floats(f"{prefix}.fn", (logits, count * hidden)),
            base=self.vector(f"{prefix}.base", logits),
            scales=self.vector(f"{prefix}.scale", 3 if rounds else 1),
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
        return np.ascontiguousarray(self.weights.array(name, shape))
