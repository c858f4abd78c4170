"""The CPU kernels: one call into the shared library computes a whole step.

dtype auto keeps the checkpoint's own format: quantised GGUF tensors stay quantised and meet
activations in signed bytes (groups of 32), with keys and values in bfloat16; bfloat16 and float32
checkpoints are computed in their own type.  An explicit dtype means that type throughout, whatever
the file holds.  Quantization int8 makes a float checkpoint's matrices what a GGUF's Q8_0 tensors
are.  The KV cache's type can be chosen apart from all that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.model_config import ModelConfig, PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.decoder import CACHE_KINDS, Decoder, LayerWeights, Shape, Step
from penstock_kernels.cpu.library import instruction_set
from penstock_kernels.cpu.matrix import OWN_KIND, PLAIN, Kind, PackedMatrix, pack
from penstock_kernels.cpu.memory import Arena
from penstock_worker.forward.interface import Batch, Forward, Recipe, StepCancelled, Unable
from penstock_worker.layers.rotary import Rotary
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.weights import Weights, open_weights

_KINDS = {"float32": Kind.F32, "bfloat16": Kind.BF16, "int8": Kind.S8H}
_FLOATS = ("float32", "bfloat16", "float16")
"""Checkpoints' types that can be quantised here."""


class CPUForward:
    """A Decoder under the runner's interface."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @property
    def layers_done(self) -> int:
        return self._decoder.layers_done

    def cancel(self) -> None:
        self._decoder.cancel()

    def kv_blocks(self) -> list[np.ndarray]:
        return self._decoder.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        lengths = np.array([0, *(len(table) for table in batch.tables)])
        step = Step(
            tokens=_int32(batch.tokens),
            first_row=_int32(np.cumsum([0, *batch.counts])),
            starts=_int32(batch.starts),
            tables=_int32(np.concatenate(batch.tables)),
            first_block=_int32(np.cumsum(lengths)[:-1]),
        )
        logits = self._decoder.logits(step, _int32(rows))
        if self._decoder.cancelled:
            raise StepCancelled
        return torch.from_numpy(logits)


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)


def recipe(prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE) -> Recipe:
    """Raises ImportError without the library, Unable for a shape that it can't run, StartupError
    for settings that no backend can follow."""
    if ranks.place.ranks > 1:
        raise Unable(
            f"the model is spread over {ranks.place.ranks} ranks ({ranks.place.layout}), and these "
            "kernels compute a whole step in one call; several ranks need attention_backend "
            "reference"
        )
    isa = instruction_set()
    config = prepared.decoder
    shape = Shape(
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        block_size=setup.block_size,
        eps=config.rms_norm_eps,
    )
    obstacle = shape.obstacle() or _bias_obstacle(config) or _dummy_obstacle(setup)
    if obstacle is not None:
        raise Unable(obstacle)
    dtype = _dtype(setup, prepared.weights.dtype)
    cache = _cache(setup.kv_cache_dtype, dtype)

    def build() -> Callable[[int], Forward]:
        weights = open_weights(prepared.weights, config, torch.float32)
        loader = _Loader(config, weights, _KINDS.get(dtype), threads)
        parts = loader.read(setup.max_model_len)
        return lambda blocks: CPUForward(
            Decoder(shape, *parts, num_blocks=blocks, cache=cache, threads=threads)
        )

    return Recipe(
        backend=f"cpu {isa}",
        dtype=dtype,
        fingerprint=f"cpu {isa} {dtype} KV {cache}",
        block_bytes=shape.block_bytes(cache, config.num_layers),
        threads_by_share=False,
        build=build,
    )


def _dummy_obstacle(setup: Setup) -> str | None:
    """Matrices are packed from files."""
    return None if setup.load_format == "auto" else f"load_format is {setup.load_format}"


def _bias_obstacle(config: ModelConfig) -> str | None:
    if config.output_bias or config.mlp_bias:
        return "the model has biases outside of the query, key and value projections"
    return None


def _dtype(setup: Setup, stored: str) -> str:
    """float32, bfloat16, int8, or a GGUF quantisation's name, which means: as the file has it."""
    if setup.quantization == "int8":
        _check_quantisable(setup.dtype, stored)
        return "int8"
    if setup.quantization != "none":
        raise StartupError(f"quantization is {setup.quantization!r}; allowed are none, int8")
    if setup.dtype not in ("auto", "float32", "bfloat16"):
        raise StartupError(
            f"dtype is {setup.dtype!r}; on a CPU auto, float32, bfloat16 are allowed"
        )
    if setup.dtype != "auto":
        return setup.dtype
    return "float32" if stored == "float16" else stored


def _check_quantisable(requested: str, stored: str) -> None:
    if stored not in _FLOATS:
        raise StartupError(
            f"quantization is int8, but the checkpoint's weights are {stored} already; allowed is "
            f"none, or a checkpoint of {', '.join(_FLOATS)}"
        )
    if requested != "auto":
        raise StartupError(
            f"quantization is int8, which leaves no weights to compute in dtype {requested}; "
            "allowed is dtype auto (kv_cache_dtype has the cache's type)"
        )


def _cache(requested: str, dtype: str) -> str:
    """The KV cache's type, a key of CACHE_KINDS."""
    if requested == "auto":
        return "float32" if dtype == "float32" else "bfloat16"
    if requested not in CACHE_KINDS:
        raise StartupError(
            f"kv_cache_dtype is {requested!r}; allowed are auto, {', '.join(CACHE_KINDS)}"
        )
    return requested


@dataclass
class _Loader:
    """Packs a checkpoint's matrices. kind: of all of them; None: each as the file has it.

    S8H is for plain tensors alone: what the file has quantised already stays as it is.
    """

    config: ModelConfig
    weights: Weights
    kind: Kind | None
    threads: int
    arena: Arena = field(default_factory=Arena)

    def read(
        self, positions: int
    ) -> tuple[list[LayerWeights], PackedMatrix, PackedMatrix, np.ndarray, np.ndarray, np.ndarray]:
        """Layers, embedding, head, last norm, cosines, sines: what a Decoder is made of."""
        config = self.config
        size = (config.vocab_size, config.hidden_size)
        rotary = Rotary.load(config, self.weights, positions)
        layers = [self._layer(number) for number in range(config.num_layers)]
        embedding = self._matrix("embed_tokens", *size, kind=self._embedding_kind())
        if config.tie_word_embeddings:
            self.weights.ignore("lm_head.weight")
            head = embedding
        else:
            head = self._matrix("lm_head", *size, kind=self.kind)
        norm = self._vector("norm.weight", config.hidden_size)
        self.weights.finish()
        return layers, embedding, head, norm, rotary.cos.numpy(), rotary.sin.numpy()

    def _embedding_kind(self) -> Kind | None:
        # Bytes make products fast; rows that are only looked up would lose bits for nothing.
        only_looked_up = not self.config.tie_word_embeddings
        return None if self.kind is Kind.S8H and only_looked_up else self.kind

    def _layer(self, number: int) -> LayerWeights:
        config, at = self.config, f"layers.{number}"
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        attention, bias = f"{at}.self_attn", config.qkv_bias
        norms: dict[str, np.ndarray] = {}
        if config.qk_norm:
            norms["query_norm"] = self._vector(f"{attention}.q_norm.weight", dim)
            norms["key_norm"] = self._vector(f"{attention}.k_norm.weight", dim)
        matrix = partial(self._matrix, kind=self.kind)
        return LayerWeights(
            query=matrix(f"{attention}.q_proj", queries, hidden, bias=bias),
            key=matrix(f"{attention}.k_proj", keys, hidden, bias=bias),
            value=matrix(f"{attention}.v_proj", keys, hidden, bias=bias),
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
        self, name: str, outputs: int, inputs: int, *, kind: Kind | None, bias: bool = False
    ) -> PackedMatrix:
        shape = (outputs, inputs)
        added = self._vector(f"{name}.bias", outputs) if bias else None
        stored = self.weights.stored(f"{name}.weight", shape)
        if kind is Kind.S8H and stored.format not in PLAIN:
            kind = None
        if stored.format in PLAIN or (kind is None and stored.format in OWN_KIND):
            return pack(
                stored.format,
                stored.data,
                shape,
                kind=kind,
                order=stored.places(),
                bias=added,
                threads=self.threads,
                arena=self.arena,
            )
        # Another type was asked for, or the kernels don't know this one: by way of float32.
        plain = self.weights.take(f"{name}.weight", shape, torch.float32).numpy()
        return pack(
            "F32",
            plain.view(np.uint8),
            shape,
            kind=Kind.BF16 if kind is None else kind,
            bias=added,
            threads=self.threads,
            arena=self.arena,
        )
