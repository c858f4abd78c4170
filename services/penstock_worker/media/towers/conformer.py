"""A conformer over a sound's windows (ConformerSpec).

A sound is encoded by itself, so the shapes of all products depend on the sound alone, and so do its
bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.audio_spec import REDUCED, ConformerSpec
from penstock.model.layer_spec import NormSpec
from penstock_kernels.reference import encoder as kernels
from penstock_worker.media.pieces import Pieces
from penstock_worker.media.sound_tower import HearingTower
from penstock_worker.media.towers.block_tower import sines
from penstock_worker.vision.layer import (
    ClippedProducts,
    Shape,
    TowerNorm,
    TowerProduct,
    load_products,
)
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

NORM = NormSpec()
"""The norm of a layer's parts but its convolution; its epsilon is no setting."""
REACH = 3
"""Windows, and bands, that a convolution reads each way."""
HIDDEN = -1e9
"""Score of what isn't there."""


class Reduction:
    """A convolution that goes two windows and two bands at a time, a norm, relu."""

    def __init__(
        self, spec: ConformerSpec, weights: Weights, name: str, inputs: int, outputs: int
    ) -> None:
        matrix = weights.take(f"{name}.conv.weight", (outputs, inputs, REACH, REACH))
        self._product = TowerProduct(matrix.flatten(1), None)
        self._norm = weights.take(f"{name}.norm.weight", (outputs,))
        self._eps = spec.eps
        self._cumulative_eps = spec.cumulative_eps
        self._around = (0, 2) if spec.ahead else (1, 1)

    def pieces(self, x: Tensor, threads: RowThreads) -> Pieces[Tensor]:
        """Maps [windows, bands, inputs] to half of both, rounded up, and the outputs."""
        around = functional.pad(x, (0, 0, 1, 1, *self._around))
        seen = around.unfold(0, REACH, 2).unfold(1, REACH, 2)
        each = seen.shape[1] * self._product.size
        if self._cumulative_eps is None:
            return (yield from threads.mapped(self._of_windows, seen, each=each))
        made = yield from threads.mapped(self._convolved, seen, each=each)
        return (yield from self._by_those_so_far(made, self._cumulative_eps, threads))

    def _convolved(self, seen: Tensor) -> Tensor:
        made = self._product(seen.flatten(2).flatten(0, 1).contiguous())
        return made.unflatten(0, seen.shape[:2])

    def _of_windows(self, seen: Tensor) -> Tensor:
        made = self._convolved(seen)
        normed = kernels.layer_norm(made.flatten(0, 1), self._norm, None, self._eps)
        return torch.relu(normed).view_as(made)

    def _by_those_so_far(self, made: Tensor, eps: float, threads: RowThreads) -> Pieces[Tensor]:
        """relu of [windows, bands, outputs], normed by the mean of all numbers of a window and of
        those before it, and by the mean of the squares of their distances, each from its window's
        own mean."""
        each = made[0].numel()
        counts = torch.arange(1, len(made) + 1, device=made.device) * each
        sums = yield from threads.mapped(lambda x: x.float().flatten(1).sum(1), made, each=each)
        means = sums.cumsum(0) / counts
        apart = yield from threads.mapped(_squares, made, means, each=each)
        factors = torch.rsqrt(apart.cumsum(0) / counts + eps)
        return (yield from threads.mapped(self._normed, made, means, factors, each=each))

    def _normed(self, made: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        normed = (made.float() - means[:, None, None]) * factors[:, None, None]
        return torch.relu((normed * self._norm.float()).to(made.dtype))


def _squares(made: Tensor, means: Tensor) -> Tensor:
    """[windows]: sums of the squares of numbers' distances from a window's mean."""
    return (made.float() - means[:, None, None]).square().flatten(1).sum(1)


class ConformerLayer:
    """Maps [vectors, hidden] to the same shape."""

    def __init__(
        self, spec: ConformerSpec, weights: Weights, number: int, threads: RowThreads
    ) -> None:
        at, size = f"layers.{number}", spec.hidden_size
        self._spec, self._weights, self._threads = spec, weights, threads
        self._bound = min(spec.bound, torch.finfo(weights.dtype).max)
        self._feeds = [_FeedForward(self, f"{at}.feed_forward{which}") for which in (1, 2)]
        self._norms = [
            TowerNorm(weights, f"{at}.norm_{name}", size, NORM)
            for name in ("pre_attn", "post_attn", "out")
        ]
        self._qkv = self.product([(f"{at}.{part}_proj", size) for part in "qkv"], size)
        self._mixed = self.product([(f"{at}.self_attn.post", size)], size)
        self._growth = self._factors(f"{at}.self_attn.per_dim_scale")
        self._of_keys = math.log(1 + math.e) / math.log(2) if spec.grown_keys else 1.0
        self._distances = self._of_distances(f"{at}.self_attn.relative_k_proj")
        own = NormSpec(eps=spec.eps)
        self._around = [
            TowerNorm(weights, f"{at}.lconv1d.{name}", size, own)
            for name in ("pre_layer_norm", "conv_norm")
        ]
        self._start = self.product([(f"{at}.lconv1d.linear_start", 2 * size)], size)
        self._end = self.product([(f"{at}.lconv1d.linear_end", size)], size)
        kernel, shape = f"{at}.lconv1d.depthwise_conv1d.weight", (size, 1, spec.reach)
        flat = weights.has(kernel) and len(weights.shape(kernel)) == 2
        taken = weights.take(kernel, shape[::2] if flat else shape)
        self._kernel = taken if flat else taken[:, 0]

    @property
    def row_work(self) -> int:
        """Multiplications for each vector."""
        products = (self._qkv, self._mixed, self._start, self._end)
        seen = 2 * self._spec.window * self._spec.hidden_size
        return sum(each.size for each in (*products, *self._feeds)) + seen

    def bounded(self, x: Tensor) -> Tensor:
        """Keeps numbers within the spec's bound."""
        return x.clamp(-self._bound, self._bound)

    def product(self, parts: list[Shape], inputs: int) -> TowerProduct | ClippedProducts:
        """Reads modules that share their input."""
        return load_products(self._weights, parts, inputs, clipped=self._spec.clipped)

    def norm(self, name: str) -> TowerNorm:
        """Reads a norm of vectors."""
        return TowerNorm(self._weights, name, self._spec.hidden_size, NORM)

    def _factors(self, name: str) -> Tensor:
        """What queries are multiplied by, number by number; float32, [head size]."""
        size = self._spec.head_dim
        if self._weights.has(f"{name}.weight"):  # GGUF files have what softplus makes of them
            grown = self._weights.take(f"{name}.weight", (size,), torch.float32)
        else:
            grown = functional.softplus(self._weights.take(name, (size,))).float()
        return grown * (size**-0.5 / math.log(2))

    def _of_distances(self, name: str) -> Tensor:
        """[heads, head size, window] float32: what stands for the distance of each vector that one
        attends to, the most distant first."""
        spec, size = self._spec, self._spec.hidden_size
        matrix = self._weights.take(f"{name}.weight", (size, size))
        waves = sines(spec.window, size).flip(0).to(matrix.device, matrix.dtype)
        found = functional.linear(waves, matrix).float()
        return found.unflatten(1, (spec.num_heads, -1)).permute(1, 2, 0).contiguous()

    def pieces(self, hidden: Tensor) -> Pieces[Tensor]:
        """Computes the layer, with pauses."""
        size, window, mapped = self._spec.hidden_size, self._spec.window, self._threads.mapped
        count = len(hidden)
        work = self._feeds[0].size + self._qkv.size
        begun = yield from mapped(self._begun, hidden, each=work)
        first, query, key, value = begun.split(size, 1)
        places = torch.arange(count, device=hidden.device)
        seen = (query, _history(key, window), _history(value, window), places)
        mixed = yield from mapped(self._attended, *seen, each=2 * window * size)
        work = self._mixed.size + self._start.size
        parts = yield from mapped(self._weighed, first, mixed, each=work)
        second, weighed = parts.split(size, 1)
        work = self._end.size + self._feeds[1].size
        return (
            yield from mapped(self._ended, second, _history(weighed, self._spec.reach), each=work)
        )

    def _begun(self, hidden: Tensor) -> Tensor:
        """Returns what the first feed-forward makes, and queries, keys and values of it."""
        hidden = self._feeds[0](hidden)
        return torch.cat((hidden, self._qkv(self._norms[0](self.bounded(hidden)))), 1)

    def _attended(self, query: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> Tensor:
        """query: [rows, hidden]. keys, values: [rows, hidden, window]. places: of the rows in the
        sound, [rows]."""
        spec = self._spec
        apart = (spec.num_heads, spec.head_dim)
        grown = query.float().unflatten(1, apart) * self._growth
        key = keys.float().unflatten(1, apart) * self._of_keys
        scores = torch.einsum("rhd,rhdw->rhw", grown, key)
        scores = scores + torch.einsum("rhd,hdw->rhw", grown, self._distances)
        scores = torch.tanh(scores / spec.score_cap) * spec.score_cap
        at = places[:, None] - torch.arange(spec.window - 1, -1, -1, device=places.device)
        shares = scores.masked_fill((at < 0)[:, None], HIDDEN).softmax(-1)
        mixed = torch.einsum("rhw,rhdw->rhd", shares, values.float().unflatten(1, apart))
        return mixed.flatten(1).to(query.dtype)

    def _weighed(self, first: Tensor, mixed: Tensor) -> Tensor:
        """Returns the residual after attention, and the input of the convolution."""
        hidden = first + self._norms[1](self.bounded(self._mixed(mixed)))
        begun = self._start(self._around[0](hidden))
        return torch.cat((hidden, functional.glu(begun, 1)), 1)

    def _ended(self, hidden: Tensor, windows: Tensor) -> Tensor:
        """windows: [rows, hidden, reach]."""
        found = self.bounded((windows * self._kernel).sum(2))
        found = functional.silu(self._around[1](found))
        hidden = self._feeds[1](hidden + self._end(found))
        return self._norms[2](self.bounded(hidden))


class _FeedForward:
    def __init__(self, layer: ConformerLayer, at: str) -> None:
        size = layer._spec.hidden_size
        self._up = layer.product([(f"{at}.ffw_layer_1", 4 * size)], size)
        self._down = layer.product([(f"{at}.ffw_layer_2", size)], 4 * size)
        self._norms = [layer.norm(f"{at}.{name}_layer_norm") for name in ("pre", "post")]
        self._bounded = layer.bounded
        self._weight = layer._spec.residual_weight

    @property
    def size(self) -> int:
        return self._up.size + self._down.size

    def __call__(self, x: Tensor) -> Tensor:
        inner = functional.silu(self._up(self._norms[0](self._bounded(x))))
        return self._norms[1](self._bounded(self._down(inner))) * self._weight + x


def _history(x: Tensor, count: int) -> Tensor:
    """[rows, size, count]: of each row those before it and itself; zeros before the first."""
    return functional.pad(x, (0, 0, count - 1, 0)).unfold(0, count, 1)


class ConformerTower(HearingTower, of=ConformerSpec):
    def __init__(self, spec: ConformerSpec, weights: Weights, threads: RowThreads) -> None:
        at, (first, second) = "subsample_conv_projection", spec.channels
        self._reductions = (
            Reduction(spec, weights, f"{at}.layer0", 1, first),
            Reduction(spec, weights, f"{at}.layer1", first, second),
        )
        bands = -(-spec.mel_bins // REDUCED)
        product = [(f"{at}.input_proj_linear", spec.hidden_size)]
        self._first = TowerProduct.load(weights, product, bands * second, bias=False)
        self._layers = [
            ConformerLayer(spec, weights, number, threads) for number in range(spec.num_layers)
        ]
        self._last: TowerProduct | None = None
        if spec.outputs:
            product = [("output_proj", spec.outputs)]
            self._last = TowerProduct.load(weights, product, spec.hidden_size)
        self._spec = spec
        self._threads = threads

    def work(self, frames: int) -> int:
        """Multiplications for so many windows, more or less."""
        spec, rows = self._spec, -(-frames // REDUCED)
        first, second = spec.channels
        convolved = REACH**2 * spec.mel_bins * first * (REDUCED + second) // REDUCED
        of_row = convolved + sum(layer.row_work for layer in self._layers)
        last = 0 if self._last is None else self._last.size
        return rows * (of_row + self._first.size + last)

    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [1, bins, windows] to [vectors, spec.given_size]. `layer_done` is called
        after each layer."""
        hidden = self._first.given(mel[0].t()[..., None])
        for reduction in self._reductions:
            hidden = yield from reduction.pieces(hidden, self._threads)
        rows = hidden.flatten(1)
        hidden = yield from self._threads.mapped(self._first, rows, each=self._first.size)
        for layer in self._layers:
            hidden = yield from layer.pieces(hidden)
            layer_done()
        hidden = hidden[:: self._spec.every].contiguous()
        if self._last is None:
            return hidden
        return (yield from self._threads.mapped(self._last, hidden, each=self._last.size))
