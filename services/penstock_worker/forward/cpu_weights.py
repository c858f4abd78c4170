"""Packs a checkpoint's matrices for the CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from penstock.model_config import ModelConfig
from penstock_kernels.cpu.decoder import LayerWeights
from penstock_kernels.cpu.matrix import MatrixKind, NotFiniteError, PackedMatrix, pack
from penstock_kernels.cpu.memory import Arena
from penstock_worker.forward.cpu_checkpoints import CheckpointPacking
from penstock_worker.layers.rotary import Rotary
from penstock_worker.quantisation.registry import FORMATS, QUANTIZATIONS
from penstock_worker.weights.checkpoint_tensor import CheckpointTensor
from penstock_worker.weights.stored import not_finite
from penstock_worker.weights.weights import Weights

KINDS = {"float32": MatrixKind.F32, "bfloat16": MatrixKind.BF16}
"""Matrix kind by the dtype in which all matrices are computed."""
ON_LOAD = {name: each.cpu for name, each in QUANTIZATIONS.items() if each.cpu is not None}
"""Matrix kind by the setting `quantization`: what unquantised matrices become on load."""
QUANTISED = frozenset(ON_LOAD.values())


@dataclass
class CPUWeights:
    """Packs a checkpoint's matrices for the CPU kernels."""

    config: ModelConfig
    weights: Weights
    kind: MatrixKind | None
    """Kind of all matrices; None means each as the file has it. A quantised kind applies to
    unquantised tensors only: what the file has quantised stays as it is."""
    threads: int
    arena: Arena = field(default_factory=Arena)

    def __post_init__(self) -> None:
        self._checkpoints = CheckpointPacking(self.threads, self.arena)

    def read(
        self, positions: int
    ) -> tuple[list[LayerWeights], PackedMatrix, PackedMatrix, np.ndarray, np.ndarray, np.ndarray]:
        """Returns (layers, embedding, head, last norm, cosines, sines), the parts of a Decoder.
        `positions` is the number of positions in the rotary tables."""
        config = self.config
        size = (config.vocab_size, config.hidden_size)
        rotary = Rotary.load(config.ropes[0], self.weights, positions)
        layers = [self._layer(number) for number in range(config.num_layers)]
        embedding = self._matrix("embed_tokens", *size, kind=self._embedding_kind())
        if config.tie_word_embeddings:
            self.weights.ignore("lm_head.weight")
            head = embedding
        else:
            head = self._matrix("lm_head", *size, kind=self.kind)
        norm = self._vector("norm.weight", config.hidden_size)
        self.weights.finish()
        self._checkpoints.report()
        return layers, embedding, head, norm, rotary.cos.numpy(), rotary.sin.numpy()

    def _embedding_kind(self) -> MatrixKind | None:
        # int8 makes products fast; rows that are only looked up would lose precision for nothing.
        only_looked_up = not self.config.tie_word_embeddings
        return None if self.kind in QUANTISED and only_looked_up else self.kind

    def _layer(self, number: int) -> LayerWeights:
        config, at = self.config, f"layers.{number}"
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        attention, spec = f"{at}.self_attn", config.layer(number).attention
        norms: dict[str, np.ndarray] = {}
        if spec.norm == "head":
            norms["query_norm"] = self._vector(f"{attention}.q_norm.weight", dim)
            norms["key_norm"] = self._vector(f"{attention}.k_norm.weight", dim)
        matrix = partial(self._matrix, kind=self.kind)
        return LayerWeights(
            query=matrix(f"{attention}.q_proj", queries, hidden, bias=spec.qkv_bias),
            key=matrix(f"{attention}.k_proj", keys, hidden, bias=spec.qkv_bias),
            value=matrix(f"{attention}.v_proj", keys, hidden, bias=spec.qkv_bias),
            output=matrix(f"{attention}.o_proj", hidden, queries),
            gate=matrix(f"{at}.mlp.gate_proj", inner, hidden),
            up=matrix(f"{at}.mlp.up_proj", inner, hidden),
            down=matrix(f"{at}.mlp.down_proj", hidden, inner),
            attention_norm=self._vector(f"{at}.input_layernorm.weight", hidden),
            feed_forward_norm=self._vector(f"{at}.post_attention_layernorm.weight", hidden),
            **norms,
        )

    def _vector(self, name: str, size: int) -> np.ndarray:
        return self.weights.take(name, (size,), torch.float32).numpy()

    def _matrix(
        self, name: str, outputs: int, inputs: int, *, kind: MatrixKind | None, bias: bool = False
    ) -> PackedMatrix:
        shape = (outputs, inputs)
        added = self._vector(f"{name}.bias", outputs) if bias else None
        stored = self.weights.stored(f"{name}.weight", shape)
        if kind is None and isinstance(stored, CheckpointTensor):
            return self._checkpoints.pack(stored.quantised, added, stored.places())
        form = FORMATS.get(stored.format)
        plain = form is not None and form.plain
        if kind in QUANTISED and not plain:
            kind = None
        if plain or (kind is None and form is not None and form.packed):
            try:
                packed = pack(
                    stored.format,
                    stored.data,
                    shape,
                    kind=kind,
                    order=stored.places(),
                    bias=added,
                    threads=self.threads,
                    arena=self.arena,
                )
            except NotFiniteError:
                raise not_finite(stored) from None
            stored.release()
            return packed
        # Another dtype was asked for, or the kernels don't know this format: decode to float32.
        decoded = self.weights.take(f"{name}.weight", shape, torch.float32).numpy()
        return pack(
            "F32",
            decoded.view(np.uint8),
            shape,
            kind=MatrixKind.BF16 if kind is None else kind,
            bias=added,
            threads=self.threads,
            arena=self.arena,
        )
