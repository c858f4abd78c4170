"""Bytes, operations and kernels of a step of a model."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 2  # bytes of a number
FP8_BLOCKS = 1 + 4 / 128  # bytes of a weight, with its share of a scale


@dataclass(frozen=True)
class Experts:
    count: int
    active: int
    inner: int

    def met(self, rows: int) -> float:
        """How many of the experts are met by so many rows that choose at random."""
        return self.count * (1 - (1 - self.active / self.count) ** rows)


@dataclass(frozen=True)
class Shape:
    """A decoder of equal layers, as its release's config.json has them. Norms are left out."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    inner: int = 0  # of the feed-forward network
    experts: Experts | None = None
    weight_bytes: float = WIDTH  # of a weight in a layer's matrices
    batch_invariant: bool = False

    @property
    def dense(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's products that all rows take."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = [(self.hidden, queries + 2 * keys), (queries, self.hidden)]
        if self.experts is not None:
            return [*attention, (self.hidden, self.experts.count)]
        return [*attention, (self.hidden, 2 * self.inner), (self.inner, self.hidden)]

    @property
    def fp8(self) -> bool:
        return self.weight_bytes == FP8_BLOCKS

    @property
    def quantising_kernels(self) -> int:
        """Kernels of a layer that quantise: with weights in FP8, they do so to the inputs of
        attention's two products, and not to those of experts."""
        return 2 if self.fp8 else 0

    @property
    def triton_kernels(self) -> int:
        """Triton kernels of a layer: two norms, rotation and cache write, attention and its splits'
        fold, gate; with experts their choice, the rows' order, the list of tiles, two products and
        a sum."""
        return 6 if self.experts is None else 11

    @property
    def early_kernels(self) -> int:
        """Kernels of a layer that are launched early: all but the library's products."""
        every = self.triton_kernels + self.quantising_kernels + len(self.dense)
        return every - self.library_products

    @property
    def library_products(self) -> int:
        """Products of a layer with unquantised weights. With FP8 this is the router's."""
        if self.fp8:
            return len(self.dense) - 2
        return 0 if self.batch_invariant or self.weight_bytes != WIDTH else len(self.dense)

    @property
    def row_bytes(self) -> int:
        """Bytes that a layer's norms, rotation and gate move for a row: a norm reads two rows and
        writes two, the others read and write what they change."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inner = self.inner if self.experts is None else self.experts.active * self.experts.inner
        return WIDTH * (8 * self.hidden + 2 * (queries + 2 * keys) + 3 * inner)

    @property
    def kernels(self) -> int:
        """Kernels of a step, without sampling; the first and the last norm share one, the embedding
        and the head are one each, and inputs take three."""
        each = self.triton_kernels + self.quantising_kernels + len(self.dense)
        return self.layers * each + 6

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * WIDTH

    @property
    def head_bytes(self) -> int:
        return self.vocab * self.hidden * WIDTH

    def expert_weights(self, met: float) -> float:
        """Numbers of so many experts' matrices in a layer."""
        return 0.0 if self.experts is None else met * 3 * self.hidden * self.experts.inner

    def expert_operations(self, rows: int) -> float:
        """Operations of a layer's experts for so many rows."""
        return 0.0 if self.experts is None else 2 * rows * self.expert_weights(self.experts.active)


QWEN3_8B = Shape(
    name="Qwen3-8B",
    hidden=4096,
    layers=36,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=151_936,
    inner=12_288,
)
QWEN3_30B_A3B = Shape(
    name="Qwen3-30B-A3B",
    hidden=2048,
    layers=48,
    heads=32,
    kv_heads=4,
    head_dim=128,
    vocab=151_936,
    experts=Experts(128, 8, 768),
)
