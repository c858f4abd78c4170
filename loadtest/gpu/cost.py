"""Bytes that must move and operations that must be made, at least. A multiply-add is two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.model.config import ModelConfig


@dataclass(frozen=True)
class ModelCost:
    """What a model and its KV cache cost in bfloat16. Norms and the embedding's few rows are left
    out."""

    config: ModelConfig

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer's matrices."""
        config = self.config
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        attention = config.hidden_size * (queries + 2 * keys) + queries * config.hidden_size
        return attention + 3 * config.hidden_size * config.intermediate_size

    @property
    def head_parameters(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Read in a step, whatever the batch."""
        layers = self.config.num_layers * self.layer_parameters
        return 2 * (layers + self.head_parameters)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token, over all layers."""
        config = self.config
        return 2 * 2 * config.num_kv_heads * config.head_dim * config.num_layers

    def decode_bytes(self, batch: int, context: int) -> int:
        """Bytes of one step: weights and keys and values read, each sequence with `context` tokens
        in the cache after the step; the new ones' keys and values written."""
        return self.weight_bytes + batch * (context + 1) * self.kv_bytes

    def mixed_bytes(self, batch: int, context: int, before: int, chunk: int) -> int:
        """Bytes of a decode step, see `decode_bytes`, with `chunk` new tokens of a prompt after the
        `before` that are in the cache."""
        return self.decode_bytes(batch, context) + (before + chunk) * self.kv_bytes

    def prefill_flops(self, chunks: Iterable[tuple[int, int]]) -> int:
        """chunks: (tokens before, new tokens) of each sequence; the head for each one's last."""
        config = self.config
        flops = 0
        for before, count in chunks:
            products = count * config.num_layers * self.layer_parameters + self.head_parameters
            flops += 2 * products
            flops += config.num_layers * attention_flops(
                config.num_heads, config.head_dim, before, count
            )
        return flops


def attention_pairs(before: int, count: int) -> int:
    """Keys seen by `count` new queries, each its own and all before, `before` of them older."""
    return count * before + count * (count + 1) // 2


def attention_flops(heads: int, head_dim: int, before: int, count: int) -> int:
    """Scores and weighted values of one layer's attention over one sequence."""
    return 4 * heads * head_dim * attention_pairs(before, count)


def decode_attention_bytes(
    batch: int, context: int, heads: int, kv_heads: int, head_dim: int, item: int = 2
) -> int:
    """One layer's: keys and values of `item` bytes read, 2-byte queries read and results
    written."""
    return batch * (2 * context * kv_heads * item + 2 * heads * 2) * head_dim


def product_bytes(rows: int, inputs: int, outputs: int, weight_bytes: float = 2.0) -> int:
    """x @ weight.T with 2-byte activations and weights of `weight_bytes` bytes each."""
    return round(outputs * inputs * weight_bytes) + 2 * rows * (inputs + outputs)


def product_flops(rows: int, inputs: int, outputs: int) -> int:
    return 2 * rows * inputs * outputs


@dataclass(frozen=True)
class Limits:
    """What the machine does at best, as measured. memory: bytes/s that are read, or read and
    written, whichever are more.  matrix: operations/s of a large bfloat16 product."""

    memory: float
    matrix: float

    def seconds(self, size: float, flops: float) -> float:
        """The least time of a piece of work."""
        return max(size / self.memory, flops / self.matrix)
