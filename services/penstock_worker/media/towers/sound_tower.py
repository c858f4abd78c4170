"""A transformer over the windows of a sound (AudioTowerSpec).

A sound is encoded by itself, chunk by chunk, so the shapes of all products depend on the sound
alone, and so do its bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.audio_spec import AudioTowerSpec
from penstock_kernels import reference
from penstock_kernels.reference import encoder as kernels
from penstock_worker.media.pieces import Pieces
from penstock_worker.media.sound_tower import HearingTower
from penstock_worker.media.towers.block_tower import sines
from penstock_worker.vision.layer import TowerLayer, TowerNorm, TowerProduct
from penstock_worker.vision.rows import RowThreads, attention_work
from penstock_worker.weights.weights import Weights

REACH = 3
"""Windows that a convolution reads."""


class SoundConvolution:
    """A convolution over time, with zeros before the first and after the last, and gelu."""

    def __init__(self, weights: Weights, name: str, inputs: int, outputs: int, step: int) -> None:
        """step: after every so many there is a result."""
        weight = weights.take(f"{name}.weight", (outputs, inputs, REACH))
        self._product = TowerProduct(weight.flatten(1), weights.take(f"{name}.bias", (outputs,)))
        self._step = step

    def work(self, count: int) -> int:
        """Multiplications for so many results."""
        return count * self._product.size

    def __call__(self, x: Tensor) -> Tensor:
        """Maps [count, inputs] to [ceil(count / step), outputs]."""
        around = functional.pad(x, (0, 0, 1, 1))
        windows = around.unfold(0, REACH, self._step).flatten(1)
        return reference.plain_activation(self._product(windows), "gelu")


class AudioTower(HearingTower, of=AudioTowerSpec):
    def __init__(self, spec: AudioTowerSpec, weights: Weights, threads: RowThreads) -> None:
        size = spec.hidden_size
        self.dtype = weights.dtype
        self._convolutions = (
            SoundConvolution(weights, "conv1", spec.mel_bins, size, 1),
            SoundConvolution(weights, "conv2", size, size, 2),
        )
        if spec.block:
            self._positions = sines(spec.block // 2, size).to(weights.device, self.dtype)
            weights.ignore("position_embedding.weight")  # llama.cpp's files have the sines
        else:
            self._positions = weights.take("position_embedding.weight", (spec.positions, size))
        self._layers = [
            TowerLayer(spec, weights, number, threads=threads) for number in range(spec.num_layers)
        ]
        self._last = TowerNorm(weights, "last_norm", size, spec.norm)
        self._spec = spec

    def work(self, frames: int) -> int:
        """Multiplications for a chunk of so many windows, more or less."""
        first, second = self._convolutions
        lengths = self._lengths(frames)
        count = sum(lengths)
        of_layers = sum(count * layer.row_work for layer in self._layers)
        seen = len(self._layers) * attention_work(lengths, self._spec.hidden_size)
        return first.work(frames) + second.work(count) + of_layers + seen

    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [chunks, bins, windows] to [vectors, hidden]. `layer_done` is called after
        each layer of each chunk.

        A chunk with a window more than two for each vector is cut there: the last window is read,
        and has no vector of its own."""
        encoded = []
        for chunk in mel:
            encoded.append((yield from self._encoded(chunk, layer_done)))
        return torch.cat(encoded)

    def _encoded(self, mel: Tensor, layer_done: Callable[[], None]) -> Pieces[Tensor]:
        windows, made = mel.t().to(self._positions.device, self.dtype), []
        lengths = self._lengths(len(windows))
        blocks = windows.split(self._spec.block or len(windows))
        for hidden, count in zip(blocks, lengths, strict=True):
            for convolution in self._convolutions:
                hidden = convolution(hidden)
                yield convolution.work(len(hidden))
            made.append(hidden[:count] + self._positions[:count])
        count, hidden = sum(lengths), kernels.pad_tiles(torch.cat(made))
        for layer in self._layers:
            hidden = yield from layer.pieces(hidden, lengths)
            layer_done()
        hidden = hidden[:count]
        if self._spec.pooled:
            pairs = hidden[: count // 2 * 2].unflatten(0, (-1, 2))
            hidden = pairs.float().mean(1).to(hidden.dtype)
        return self._last(kernels.pad_tiles(hidden))[: len(hidden)]

    def _lengths(self, frames: int) -> list[int]:
        """Vectors that see one another, part by part, of so many windows. Those of a last window
        without a second one are a block's alone."""
        block = self._spec.block
        if not block:
            return [frames // 2]
        whole, rest = divmod(frames, block)
        return [block // 2] * whole + ([(rest + 1) // 2] if rest else [])
