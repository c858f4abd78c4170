"""A transformer over the blocks of a sound of any length (BlockTowerSpec).

A sound is encoded by itself, and convolved block by block, so the shapes of all products depend on
the sound alone, and so do its bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.audio_spec import BlockTowerSpec, halved
from penstock_kernels import reference
from penstock_kernels.reference import encoder as kernels
from penstock_worker.media.pieces import Pieces
from penstock_worker.media.sound_tower import HearingTower
from penstock_worker.vision.layer import TowerLayer, TowerNorm, TowerProduct
from penstock_worker.vision.rows import RowThreads, attention_work
from penstock_worker.weights.weights import Weights

REACH = 3
"""Windows, and bands, that a convolution reads."""
STEP = 2
TIMESCALE = 10_000
"""Ratio of the longest wave of the positions to the shortest."""


class _Convolution:
    """A convolution over bands and windows, with zeros around them, and gelu."""

    def __init__(
        self, weights: Weights, name: str, inputs: int, outputs: int, threads: RowThreads
    ) -> None:
        weight = weights.take(f"{name}.weight", (outputs, inputs, REACH, REACH))
        self._product = TowerProduct(weight.flatten(1), weights.take(f"{name}.bias", (outputs,)))
        self._threads = threads

    def work(self, bins: int, frames: int) -> int:
        """Multiplications for inputs of this size."""
        return _half(bins) * _half(frames) * self._product.size

    def pieces(self, x: Tensor) -> Pieces[Tensor]:
        """Maps [inputs, bins, windows] to [outputs, half the bins, half the windows]."""
        around = functional.unfold(x[None], REACH, padding=REACH // 2, stride=STEP)[0]
        rows = around.t().contiguous()
        out = yield from self._threads.mapped(self._convolved, rows, each=self._product.size)
        return out.t().unflatten(1, (_half(x.shape[1]), _half(x.shape[2])))

    def _convolved(self, rows: Tensor) -> Tensor:
        return reference.plain_activation(self._product(rows), "gelu")


def _half(size: int) -> int:
    return (size + 1) // 2


class BlockTower(HearingTower, of=BlockTowerSpec):
    def __init__(self, spec: BlockTowerSpec, weights: Weights, threads: RowThreads) -> None:
        size, channels = spec.hidden_size, spec.channels
        self.dtype = weights.dtype
        self._device = weights.device
        self._convolutions = [
            _Convolution(weights, f"conv2d{number}", inputs, channels, threads)
            for number, inputs in ((1, 1), (2, channels), (3, channels))
        ]
        inputs = channels * halved(spec.mel_bins)
        self._product = TowerProduct.load(weights, [("conv_out", size)], inputs, bias=False)
        self._positions = sines(halved(spec.block), size).to(weights.device, self.dtype)
        self._layers = [
            TowerLayer(spec, weights, number, threads=threads) for number in range(spec.num_layers)
        ]
        self._last = TowerNorm(weights, "last_norm", size, spec.norm)
        self._spec = spec

    def work(self, frames: int) -> int:
        """Multiplications for a sound of so many windows, more or less."""
        spec = self._spec
        count, each = spec.vectors(frames), len(self._positions) * self._product.size
        bins, windows = spec.mel_bins, spec.block
        for convolution in self._convolutions:
            each += convolution.work(bins, windows)
            bins, windows = _half(bins), _half(windows)
        of_layers = sum(count * layer.row_work for layer in self._layers)
        seen = len(self._layers) * attention_work(self._lengths(count), spec.hidden_size)
        return -(-frames // spec.block) * each + of_layers + seen

    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [1, bins, windows] to [vectors, hidden]. `layer_done` is called after each
        layer."""
        spec, frames = self._spec, mel.shape[2]
        alone = spec.short_alone and frames < spec.block
        around = functional.pad(mel[0], (0, 0 if alone else -frames % spec.block))
        made = []
        for block in around.to(self._device, self.dtype).split(spec.block, 1):
            made.append((yield from self._convolved(block)))
        count = spec.vectors(frames)
        hidden = kernels.pad_tiles(torch.cat(made)[:count])
        for layer in self._layers:
            hidden = yield from layer.pieces(hidden, self._lengths(count))
            layer_done()
        return self._last(hidden)[:count]

    def _convolved(self, block: Tensor) -> Pieces[Tensor]:
        """Vectors of a block, [bins, windows], those of its silence included."""
        x = block[None]
        for convolution in self._convolutions:
            x = yield from convolution.pieces(x)
        rows = x.permute(2, 0, 1).flatten(1).contiguous()
        yield len(rows) * self._product.size
        return self._product(rows) + self._positions[: len(rows)]

    def _lengths(self, count: int) -> list[int]:
        """Vectors that see one another, part by part, of a sound that has so many."""
        most = self._spec.seen * len(self._positions)
        whole, rest = divmod(count, most)
        return [most] * whole + ([rest] if rest else [])


def sines(length: int, size: int) -> Tensor:
    """float32 [length, size]: sines of each place, then cosines, of waves from 2 pi places to
    TIMESCALE times as many (Radford et al., 2022)."""
    half = size // 2
    step = math.log(TIMESCALE) / max(half - 1, 1)
    angles = torch.arange(length)[:, None] * torch.exp(-step * torch.arange(half).float())
    return torch.cat((angles.sin(), angles.cos()), dim=1)
