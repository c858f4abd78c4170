"""A conformer over blocks of a sound of any length (BlockConformerSpec).

A sound is encoded by itself, so the shapes of all products depend on the sound alone, and so do its
bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.audio_spec import BlockConformerSpec
from penstock.model.layer_spec import NormSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.media.sound_tower import HearingTower
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
"""PyTorch's own epsilon, of norms over a vector and over a batch, which is no setting."""


class _FeedForward:
    """Adds half of what it gives."""

    def __init__(self, spec: BlockConformerSpec, weights: Weights, at: str) -> None:
        size, inner = spec.hidden_size, spec.intermediate_size
        self._norm = TowerNorm(weights, f"{at}.pre_norm", size, NORM)
        self._up = TowerProduct.load(weights, [(f"{at}.up_proj", inner)], size)
        self._down = TowerProduct.load(weights, [(f"{at}.down_proj", size)], inner)
        self.size = self._up.size + self._down.size

    def __call__(self, x: Tensor) -> Tensor:
        return 0.5 * self._down(functional.silu(self._up(self._norm(x)))) + x


class _Attention:
    """Attention within blocks."""

    def __init__(self, spec: BlockConformerSpec, weights: Weights, at: str) -> None:
        size, inner, block = spec.hidden_size, spec.num_heads * spec.head_dim, spec.block
        self._norm = TowerNorm(weights, f"{at}.pre_norm", size, NORM)
        parts = [(f"{at}.to_q", inner), (f"{at}.to_kv", 2 * inner)]
        if weights.has(f"{at}.to_k.weight"):  # in GGUF files
            parts = [(f"{at}.to_{which}", inner) for which in "qkv"]
        self._qkv = TowerProduct.load(weights, parts, size, bias=False)
        self._out = TowerProduct.load(weights, [(f"{at}.to_out", size)], inner)
        rows = 2 * spec.distances + 1
        table = weights.take(f"{at}.rel_pos_emb.weight", (rows, spec.head_dim)).float()
        places = torch.arange(block)
        apart = places[:, None] - places[None, :] + spec.distances
        self._distances = table[apart.to(table.device)]  # [block, block, head size]
        self._spec = spec
        self.before, self.behind = self._qkv.size, self._out.size
        self.seen = 3 * block * inner

    def made(self, x: Tensor) -> Tensor:
        """Queries, keys and values: [rows, 3 * heads * head size]."""
        return self._qkv(self._norm(x))

    def attended(self, made: Tensor, counts: Tensor) -> Tensor:
        """made: [blocks, block, …] of `made`'s. counts: [blocks], vectors of each that are there.
        Returns [blocks, block, heads * head size]."""
        spec = self._spec
        apart = made.float().unflatten(2, (3, spec.num_heads, spec.head_dim))
        query, key, value = apart.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        query = query * spec.head_dim**-0.5
        scores = query @ key.transpose(2, 3)
        # By place: queries of all blocks and heads at one place have the same distances.
        by_place = query.permute(2, 0, 1, 3).flatten(1, 2) @ self._distances.transpose(1, 2)
        scores = scores + by_place.unflatten(1, query.shape[:2]).permute(1, 2, 0, 3)
        there = torch.arange(spec.block, device=counts.device) < counts[:, None]
        shares = scores.masked_fill(~there[:, None, None], float("-inf")).softmax(-1)
        return (shares @ value).transpose(1, 2).flatten(2).to(made.dtype)

    def added(self, x: Tensor, mixed: Tensor) -> Tensor:
        return self._out(mixed) + x


class _Convolution:
    """A convolution over time, and what surrounds it."""

    def __init__(self, spec: BlockConformerSpec, weights: Weights, at: str) -> None:
        size, channels = spec.hidden_size, spec.channels
        self._norm = TowerNorm(weights, f"{at}.norm", size, NORM)
        self._up = _pointwise(weights, f"{at}.up_conv", 2 * channels, size)
        self._down = _pointwise(weights, f"{at}.down_conv", size, channels)
        name, shape = f"{at}.depth_conv.conv.weight", (channels, 1, spec.reach)
        flat = weights.has(name) and len(weights.shape(name)) == 2
        kernel = weights.take(name, shape[::2] if flat else shape, torch.float32)
        self._kernel = kernel if flat else kernel[:, 0]
        self._factor, self._bias = _batch_norm(weights, f"{at}.batch_norm", channels)
        half = spec.reach // 2
        self._around = half, half - (spec.reach + 1) % 2
        self.before, self.behind = self._up.size, self._down.size + channels * spec.reach

    def gated(self, x: Tensor) -> Tensor:
        """[rows, channels]."""
        return functional.glu(self._up(self._norm(x)), 1)

    def windows(self, gated: Tensor) -> Tensor:
        """[rows, channels, reach]: what each row's result is made of; zeros around the sound."""
        return functional.pad(gated, (0, 0, *self._around)).unfold(
            0, self._around[0] + self._around[1] + 1, 1
        )

    def added(self, x: Tensor, windows: Tensor) -> Tensor:
        found = (windows.float() * self._kernel).sum(2) * self._factor + self._bias
        return self._down(functional.silu(found).to(x.dtype)) + x


def _batch_norm(weights: Weights, at: str, size: int) -> tuple[Tensor, Tensor]:
    """What numbers are multiplied by, and what is added; float32, [size]. GGUF files have these."""
    factor, bias = (weights.take(f"{at}.{name}", (size,), torch.float32) for name in _AFFINE)
    if not weights.has(f"{at}.running_mean") and weights.has(f"{at}.weight"):
        return factor, bias
    mean, variance = (weights.take(f"{at}.{name}", (size,), torch.float32) for name in _RUNNING)
    factor = factor * torch.rsqrt(variance + NORM.eps)
    return factor, bias - mean * factor


_AFFINE, _RUNNING = ("weight", "bias"), ("running_mean", "running_var")


def _pointwise(weights: Weights, name: str, outputs: int, inputs: int) -> TowerProduct:
    """A convolution of one window, which is a product. GGUF files have it as a matrix."""
    flat = weights.has(f"{name}.weight") and len(weights.shape(f"{name}.weight")) == 2
    shape = (outputs, inputs) if flat else (outputs, inputs, 1)
    matrix = weights.take(f"{name}.weight", shape).flatten(1)
    return TowerProduct(matrix, weights.take(f"{name}.bias", (outputs,)))


class BlockConformerLayer:
    """Maps [vectors, hidden] to the same shape."""

    def __init__(
        self, spec: BlockConformerSpec, weights: Weights, number: int, threads: RowThreads
    ) -> None:
        at = f"layers.{number}"
        self._first, self._second = (
            _FeedForward(spec, weights, f"{at}.{name}") for name in ("ff1", "ff2")
        )
        self._attention = _Attention(spec, weights, f"{at}.attn")
        self._convolution = _Convolution(spec, weights, f"{at}.conv")
        self._norm = TowerNorm(weights, f"{at}.post_norm", spec.hidden_size, NORM)
        self._block = spec.block
        self._threads = threads

    @property
    def row_work(self) -> int:
        """Multiplications for each vector."""
        return sum(self._works) + self._attention.seen

    @property
    def _works(self) -> tuple[int, int, int]:
        attention, convolution = self._attention, self._convolution
        return (
            self._first.size + attention.before,
            attention.behind + convolution.before,
            convolution.behind + self._second.size,
        )

    def pieces(self, hidden: Tensor) -> Pieces[Tensor]:
        """Computes the layer, with pauses."""
        mapped, size, (before, between, after) = self._threads.mapped, hidden.shape[1], self._works
        begun = yield from mapped(self._begun, hidden, each=before)
        blocks = functional.pad(begun[:, size:], (0, 0, 0, -len(begun) % self._block))
        blocks = blocks.unflatten(0, (-1, self._block))
        counts = (len(begun) - self._block * torch.arange(len(blocks))).to(begun.device)
        work = self._block * self._attention.seen
        mixed = yield from self._threads.each(
            self._attention.attended, blocks, counts.clamp(max=self._block), each=work
        )
        rows = mixed.flatten(0, 1)[: len(begun)]
        parts = yield from mapped(self._between, begun[:, :size], rows, each=between)
        windows = self._convolution.windows(parts[:, size:])
        return (yield from mapped(self._ended, parts[:, :size], windows, each=after))

    def _begun(self, hidden: Tensor) -> Tensor:
        hidden = self._first(hidden)
        return torch.cat((hidden, self._attention.made(hidden)), 1)

    def _between(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = self._attention.added(hidden, mixed)
        return torch.cat((hidden, self._convolution.gated(hidden)), 1)

    def _ended(self, hidden: Tensor, windows: Tensor) -> Tensor:
        return self._norm(self._second(self._convolution.added(hidden, windows)))


class BlockConformer(HearingTower, of=BlockConformerSpec):
    def __init__(self, spec: BlockConformerSpec, weights: Weights, threads: RowThreads) -> None:
        size, outputs = spec.hidden_size, spec.outputs
        self._first = TowerProduct.load(weights, [("input_linear", size)], 2 * spec.mel_bins)
        self._layers = [
            BlockConformerLayer(spec, weights, number, threads) for number in range(spec.num_layers)
        ]
        self._predict = TowerProduct.load(weights, [("out", outputs)], size)
        self._feed_back = TowerProduct.load(weights, [("out_mid", size)], outputs)
        self._middle = spec.num_layers // 2
        self._threads = threads

    def work(self, frames: int) -> int:
        """Multiplications for so many windows, more or less."""
        each = self._first.size + sum(layer.row_work for layer in self._layers)
        return frames // 2 * (each + self._predict.size + self._feed_back.size)

    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [1, bins, windows], an even number, to [vectors, hidden]. `layer_done` is
        called after each layer."""
        pairs = self._first.given(mel[0].t().reshape(mel.shape[2] // 2, -1).contiguous())
        hidden = yield from self._threads.mapped(self._first, pairs, each=self._first.size)
        for number, layer in enumerate(self._layers, 1):
            hidden = yield from layer.pieces(hidden)
            if number == self._middle:
                work = self._predict.size + self._feed_back.size
                hidden = yield from self._threads.mapped(self._with_predictions, hidden, each=work)
            layer_done()
        return hidden

    def _with_predictions(self, hidden: Tensor) -> Tensor:
        predicted = self._predict(hidden).float().softmax(-1).to(hidden.dtype)
        return hidden + self._feed_back(predicted)
