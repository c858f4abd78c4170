"""A tower of convolutions: MobileNet V5 (see MobileNetSpec)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from penstock.model.mobilenet_spec import MobileNetSpec
from penstock.model.tower_spec import TowerSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.mobile_blocks import BlockLoader, PlaneBlock
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.places import PatchLayout
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights


class MobileNet:
    """Does what Tower does. Loads its weights when it is constructed, and is read-only from then
    on."""

    def __init__(
        self, spec: TowerSpec, net: MobileNetSpec, weights: Weights, threads: RowThreads
    ) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        self._spec, self._net = spec, net
        load = BlockLoader(weights, net.eps, threads)
        self._stem = load.convolution("conv_stem.conv", spec.channels, net.stem, 3, bias=True)
        self._stem_norm = load.norm("conv_stem.bn", net.stem)
        self._blocks: list[PlaneBlock] = []
        ends: list[int] = []
        inputs = net.stem
        for stage, blocks in enumerate(net.stages):
            for number, block in enumerate(blocks):
                self._blocks.append(load.block(block, f"blocks.{stage}.{number}", inputs))
                inputs = self._blocks[-1].outputs
            ends.append(len(self._blocks) - 1)
        self._ends = ends[-2:]
        both, outputs = sum(self._blocks[end].outputs for end in self._ends), spec.hidden_size
        inner = 2 * both
        self._up = load.product("msfa.ffn.pw_exp.conv", both, inner)
        self._up_norm = load.norm("msfa.ffn.pw_exp.bn", inner)
        self._down = load.product("msfa.ffn.pw_proj.conv", inner, outputs)
        self._down_norm = load.norm("msfa.ffn.pw_proj.bn", outputs)
        self._last = load.norm("msfa.norm", outputs)
        self._bands = load.bands

    def work(self, picture: Picture) -> int:
        """Multiplications for a picture, more or less."""
        form = [side * self._spec.patch // 2 for side in (picture.rows, picture.columns)]
        found, larger = self._stem.size * math.prod(form), 0
        for block in self._blocks:
            larger = math.prod(form) if block.step > 1 else larger
            found += block.work(math.prod(form))
            form = [-(-side // block.step) for side in form]
        return picture.tiles * (found + larger * (self._up.size + self._down.size))

    def pieces(
        self, picture: Picture, layout: PatchLayout, after: Callable[[int, Tensor], Pieces[None]]
    ) -> Pieces[Tensor]:
        """Returns [squares, hidden]. `after` is what follows each block: its number, and its
        output."""
        pixels, size = self._pixels(picture), self._stem.size
        plane = yield from self._bands.of(pixels, self._begun, 3, 2, size)
        ends: list[Tensor] = []
        for number, block in enumerate(self._blocks):
            plane = yield from block.pieces(plane, self._bands)
            yield from after(number, plane)
            if number in self._ends:
                ends.append(plane)
        return (yield from self._together(*ends))

    def _begun(self, seen: Tensor, _: Tensor) -> Tensor:
        return self._stem_norm(self._stem(seen), gelu=True)

    def _pixels(self, picture: Picture) -> Tensor:
        """[tiles, rows, columns, channels] of pixels."""
        side, channels = self._spec.patch, self._spec.channels
        form = (picture.tiles, picture.rows, picture.columns, channels, side, side)
        apart = self._stem.given(picture.patches).view(form).permute(0, 1, 4, 2, 5, 3)
        return apart.flatten(3, 4).flatten(1, 2).contiguous()

    def _together(self, larger: Tensor, smaller: Tensor) -> Pieces[Tensor]:
        """What the last two stages give, as one plane's squares."""
        repeated = smaller.repeat_interleave(2, 1).repeat_interleave(2, 2)
        both = torch.cat((larger, repeated), 3)
        size = self._up.size + self._down.size
        plane = yield from self._bands.of(both, self._fused, 1, 1, size)
        side = self._net.side
        tiles, rows, columns, hidden = plane.shape
        apart = plane.view(tiles, side, rows // side, side, columns // side, hidden)
        means = apart.float().mean((2, 4)).to(plane.dtype)
        return self._last(means.flatten(0, 2))

    def _fused(self, seen: Tensor, _: Tensor) -> Tensor:
        inner = self._up_norm(self._up(seen.flatten(0, 1)), gelu=True)
        return self._down_norm(self._down(inner))
