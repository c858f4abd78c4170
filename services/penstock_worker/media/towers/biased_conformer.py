"""A conformer over a sound of any length, whose vectors know how far apart they are by a table
(BiasedConformerSpec).

A sound is encoded by itself, so the shapes of all products depend on the sound alone, and so do its
bits. What reduces its windows computes some of its vectors at a time, which bounds the memory of a
long one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.audio_spec import BiasedConformerSpec
from penstock.model.layer_spec import NormSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.media.sound_tower import HearingTower
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
"""PyTorch's own epsilon, which is no setting."""
REACH, STEP = 3, 2
"""Windows, and bands, that a convolution reads, and by which it goes on."""
TOGETHER = 64
"""Vectors that windows are reduced to at a time."""


class _Convolution:
    """A convolution over windows and bands of all inputs, and relu."""

    def __init__(self, weights: Weights, name: str, outputs: int) -> None:
        matrix = weights.take(f"{name}.weight", (outputs, 1, REACH, REACH)).flatten(1)
        self._product = TowerProduct(matrix, weights.take(f"{name}.bias", (outputs,)))
        self.size = self._product.size

    def given(self, x: Tensor) -> Tensor:
        """Returns `x` where the weights are, and in their dtype."""
        return self._product.given(x)

    def __call__(self, seen: Tensor) -> Tensor:
        """Maps [rows, bands + 2, 1, REACH], windows around each row, to [rows, half the bands,
        outputs]."""
        around = seen[:, :, 0].unfold(1, REACH, STEP).flatten(2)
        made = self._product(around.flatten(0, 1).contiguous())
        return torch.relu(made.unflatten(0, around.shape[:2]))


class _Separable:
    """A convolution over windows and bands of each input by itself, a product over inputs, and
    relu."""

    def __init__(self, weights: Weights, names: tuple[str, str], channels: int) -> None:
        own, across = names
        kernel = weights.take(f"{own}.weight", (channels, 1, REACH, REACH))
        self._kernel = kernel[:, 0].permute(1, 2, 0).contiguous()
        self._bias = weights.take(f"{own}.bias", (channels,))
        matrix = weights.take(f"{across}.weight", (channels, channels, 1, 1)).flatten(1)
        self._product = TowerProduct(matrix, weights.take(f"{across}.bias", (channels,)))
        self.size = self._product.size + kernel.numel()

    def __call__(self, seen: Tensor) -> Tensor:
        """Maps [rows, bands + 2, channels, REACH] to [rows, half the bands, channels]."""
        count = (seen.shape[1] - REACH) // STEP + 1
        made = self._bias.expand(len(seen), count, -1).clone()
        for window in range(REACH):
            for band in range(REACH):
                bands = seen[:, band : band + STEP * (count - 1) + 1 : STEP, :, window]
                made += bands * self._kernel[window, band]
        return torch.relu(self._product(made.flatten(0, 1)).view_as(made))


class Reductions:
    """Convolutions, each of which halves windows and bands, and a product."""

    def __init__(self, spec: BiasedConformerSpec, weights: Weights, threads: RowThreads) -> None:
        at, channels = "embed", spec.channels
        self._first = _Convolution(weights, f"{at}.conv.0", channels)
        self._others = [
            _Separable(weights, (f"{at}.conv.{3 * nth - 1}", f"{at}.conv.{3 * nth}"), channels)
            for nth in range(1, spec.halvings)
        ]
        self._bands = [spec.mel_bins]
        for _ in range(spec.halvings):
            self._bands.append(_half(self._bands[-1]))
        inputs = channels * self._bands[-1]
        self._out = TowerProduct.load(weights, [(f"{at}.out", spec.hidden_size)], inputs)
        self._threads = threads

    @property
    def _levels(self) -> list[_Convolution | _Separable]:
        return [self._first, *self._others]

    @property
    def row_work(self) -> int:
        """Multiplications for each vector."""
        halvings = len(self._levels)
        return self._out.size + sum(
            each.size * bands * 2 ** (halvings - nth)
            for nth, (each, bands) in enumerate(zip(self._levels, self._bands[1:], strict=True), 1)
        )

    def pieces(self, windows: Tensor) -> Pieces[Tensor]:
        """Maps [windows, bands] to [vectors, hidden]."""
        counts = [len(windows)]
        for _ in self._levels:
            counts.append(_half(counts[-1]))
        found = []
        given = self._first.given(windows)[..., None]
        for low in range(0, counts[-1], TOGETHER):
            high = min(low + TOGETHER, counts[-1])
            x = given
            for nth, (begin, end, around) in enumerate(_read(low, high, counts)):
                x = x[begin:end] if nth == 0 else x
                padded = functional.pad(x, (0, 0, 1, 1, *around))
                seen = padded.unfold(0, REACH, STEP)
                level = self._levels[nth]
                work = level.size * self._bands[nth + 1]
                x = yield from self._threads.mapped(level, seen, each=work)
            rows = x.transpose(1, 2).flatten(1)
            found.append((yield from self._threads.mapped(self._out, rows, each=self._out.size)))
        return torch.cat(found)


def _read(low: int, high: int, counts: list[int]) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yields for each convolution which input rows it reads so that the last one gives rows low to
    high: from which row on, to which, and zeros before and after these. counts: rows of the input,
    and of each convolution's whole output."""
    found = []
    for count in counts[-2::-1]:
        wanted = STEP * low - 1, STEP * high
        begin, end = max(wanted[0], 0), min(wanted[1], count)
        found.append((begin, end, (begin - wanted[0], wanted[1] - end)))
        low, high = begin, end
    return reversed(found)


def _half(size: int) -> int:
    return (size + 1) // 2


class _FeedForward:
    """A norm, and what is added: silu(gate) * up, of which `up` comes first, and a product."""

    def __init__(self, spec: BiasedConformerSpec, weights: Weights, at: str) -> None:
        size, inner = spec.hidden_size, spec.intermediate_size
        self._norm = TowerNorm(weights, f"{at}.layer_norm", size, NORM)
        self._up = TowerProduct.load(weights, [(f"{at}.gate_up_proj", 2 * inner)], size)
        self._down = TowerProduct.load(weights, [(f"{at}.down_proj", size)], inner)
        self.size = self._up.size + self._down.size

    def __call__(self, x: Tensor) -> Tensor:
        up, gate = self._up(self._norm(x)).chunk(2, 1)
        return x + 0.5 * self._down(up * functional.silu(gate))


class BiasedConformerLayer:
    """Maps [vectors, hidden] to the same shape."""

    def __init__(
        self, spec: BiasedConformerSpec, weights: Weights, number: int, threads: RowThreads
    ) -> None:
        at, size = f"layers.{number}", spec.hidden_size
        self._first, self._second = (
            _FeedForward(spec, weights, f"{at}.feed_forward_{name}") for name in ("in", "out")
        )
        self._before_attention = TowerNorm(weights, f"{at}.layer_norm_att", size, NORM)
        own = f"{at}.self_attn"
        self._qkv = TowerProduct.load(
            weights, [(f"{own}.{each}_proj", size) for each in "qkv"], size
        )
        self._mixed = TowerProduct.load(weights, [(f"{own}.o_proj", size)], size)
        own = f"{at}.conv"
        self._before_convolution = TowerNorm(weights, f"{own}.layer_norm", size, NORM)
        self._glu = _with_gate_biases(weights, f"{own}.glu", size)
        kernel = weights.take(f"{own}.dw_sep_conv_1d.dw_conv.weight", (size, 1, spec.reach))
        self._kernel = kernel[:, 0]
        self._bias = weights.take(f"{own}.dw_sep_conv_1d.dw_conv.bias", (size,))
        self._across = _pointwise(weights, f"{own}.dw_sep_conv_1d.pw_conv", size)
        self._out = _pointwise(weights, f"{own}.ext_pw_conv_1d", size)
        self._last = TowerNorm(weights, f"{at}.layer_norm", size, NORM)
        self._spec, self._threads = spec, threads

    def work(self, vectors: int) -> int:
        """Multiplications for each of so many vectors that see one another."""
        return sum(self._works) + 2 * vectors * self._spec.hidden_size

    @property
    def _works(self) -> tuple[int, int, int]:
        convolved = self._across.size + self._out.size + self._kernel.numel()
        return (
            self._first.size + self._qkv.size,
            self._mixed.size + self._glu.size,
            convolved + self._second.size,
        )

    def pieces(self, hidden: Tensor, biases: Tensor) -> Pieces[Tensor]:
        """Computes the layer, with pauses. biases: float32 [heads, block, block], what is added to
        scores in each block of vectors."""
        spec, mapped = self._spec, self._threads.mapped
        size, (before, between, after) = spec.hidden_size, self._works
        heads, block = biases.shape[:2]
        begun = yield from mapped(self._begun, hidden, each=before)
        apart = begun[:, size:].unflatten(1, (3, heads, -1)).unflatten(0, (-1, block))
        query, key, value = (each.flatten(0, 1) for each in apart.permute(2, 0, 3, 1, 4))
        which = torch.arange(heads, device=hidden.device).repeat(len(hidden) // block)

        def attended(query: Tensor, key: Tensor, value: Tensor, head: Tensor) -> Tensor:
            scores = query.float() @ key.float().transpose(1, 2) * spec.head_dim**-0.5
            shares = (scores + biases[head]).softmax(-1)
            return (shares @ value.float()).to(query.dtype)

        work = 2 * block * block * spec.head_dim
        mixed = yield from self._threads.each(attended, query, key, value, which, each=work)
        rows = mixed.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2).flatten(0, 1)
        parts = yield from mapped(self._between, begun[:, :size], rows, each=between)
        gated = parts[:, size:].unflatten(0, (-1, block))
        windows = functional.pad(gated, (0, 0, spec.reach - 1, 0)).unfold(1, spec.reach, 1)
        return (yield from mapped(self._ended, parts[:, :size], windows.flatten(0, 1), each=after))

    def _begun(self, hidden: Tensor) -> Tensor:
        """What the first feed-forward makes, and queries, keys and values of it."""
        hidden = self._first(hidden)
        return torch.cat((hidden, self._qkv(self._before_attention(hidden))), 1)

    def _between(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Returns the residual after attention, and the input of the convolution."""
        hidden = hidden + self._mixed(mixed)
        out, gate = self._glu(self._before_convolution(hidden)).chunk(2, 1)
        return torch.cat((hidden, out * functional.silu(gate)), 1)

    def _ended(self, hidden: Tensor, windows: Tensor) -> Tensor:
        """windows: [rows, hidden, reach]."""
        found = self._across((windows * self._kernel).sum(2) + self._bias)
        hidden = hidden + self._out(functional.silu(found))
        return self._last(self._second(hidden))


def _pointwise(weights: Weights, name: str, size: int) -> TowerProduct:
    """A convolution of one vector, which is a product."""
    matrix = weights.take(f"{name}.weight", (size, size, 1)).flatten(1)
    return TowerProduct(matrix, weights.take(f"{name}.bias", (size,)))


def _with_gate_biases(weights: Weights, at: str, size: int) -> TowerProduct:
    """The product of outputs and gates, whose biases the file has in two parts."""
    name = f"{at}.ext_pw_conv_1d"
    matrix = weights.take(f"{name}.weight", (2 * size, size, 1)).flatten(1)
    more = torch.cat(
        [weights.take(f"{at}.{each}", (1, size, 1)).flatten() for each in ("b1", "b2")]
    )
    return TowerProduct(matrix, weights.take(f"{name}.bias", (2 * size,)) + more)


class BiasedConformer(HearingTower, of=BiasedConformerSpec):
    def __init__(self, spec: BiasedConformerSpec, weights: Weights, threads: RowThreads) -> None:
        own, bins = "encoder_embedding", spec.mel_bins
        self._mean, self._factor = (
            weights.take(f"{own}.global_{name}", (bins,), torch.float32)
            for name in ("mean", "invstd")
        )
        self._reductions = Reductions(spec, weights, threads)
        name = "relative_attention_bias_layer.bias_values.weight"
        self._biases = weights.take(name, (spec.table, spec.num_heads), torch.float32)
        self._layers = [
            BiasedConformerLayer(spec, weights, number, threads)
            for number in range(spec.num_layers)
        ]
        self._spec = spec

    def work(self, frames: int) -> int:
        """Multiplications for so many windows, more or less."""
        vectors = self._spec.vectors(frames)
        seen = min(vectors, self._spec.block)
        each = self._reductions.row_work + sum(layer.work(seen) for layer in self._layers)
        return vectors * each

    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [1, bins, windows] to [vectors, hidden]. `layer_done` is called after each
        layer. A sound of more than one block is padded with zeros to whole blocks."""
        windows = mel[0].t().to(self._mean.device)
        windows = (windows - self._mean) * self._factor
        hidden = yield from self._reductions.pieces(windows)
        count, block = len(hidden), min(len(hidden), self._spec.block)
        hidden = functional.pad(hidden, (0, 0, 0, -count % block))
        biases = self._by_distance(block)
        for layer in self._layers:
            hidden = yield from layer.pieces(hidden, biases)
            layer_done()
        return hidden[:count]

    def _by_distance(self, block: int) -> Tensor:
        """[heads, block, block]: of each query, what it adds to the score of each key."""
        spec, places = self._spec, torch.arange(block)
        apart = places[None, :] - places[:, None]
        most = spec.distances
        if spec.symmetric:
            rows = apart.abs().clamp(max=most - 1)
        else:
            rows = apart.clamp(-most, most - 1) + most
        return self._biases[rows.to(self._biases.device)].permute(2, 0, 1).contiguous()
