"""A vision transformer over the patches of one picture.

Sources: Dosovitskiy et al., "An image is worth 16x16 words", 2021; Radford et al., "CLIP", 2021;
Zhai et al., "SigLIP", 2023; Wang et al., "Qwen2-VL", 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, prod

import torch
from torch import Tensor

from penstock.model.tower_spec import AxialPositions, LearnedPositions, RotaryPositions, TowerSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.aspects import AspectTower
from penstock_worker.vision.distances import DistanceLayer
from penstock_worker.vision.layer import LAYER_OF, LayerForm, TowerLayer, TowerNorm, TowerProduct
from penstock_worker.vision.merging import Merging
from penstock_worker.vision.mobilenet import MobileNet
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.places import PatchLayout, seen_together, stretched, table_rows
from penstock_worker.vision.rows import ONE_THREAD, RowThreads, attention_work
from penstock_worker.weights.weights import Weights


def make_tower(
    spec: TowerSpec, weights: Weights, threads: RowThreads
) -> Tower | MobileNet | AspectTower:
    """Raises UnsupportedModel for weights that don't fit."""
    if spec.convolutions is not None:
        return MobileNet(spec, spec.convolutions, weights, threads)
    if spec.aspects is not None:
        return AspectTower(spec, spec.aspects, weights, threads)
    return Tower(spec, weights, threads)


class Tower:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(self, spec: TowerSpec, weights: Weights, threads: RowThreads = ONE_THREAD) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        size = spec.hidden_size
        kernel = (spec.frames, spec.patch, spec.patch)[spec.frames == 1 :]
        weight = _patch_matrix(weights, (size, spec.channels, *kernel))
        bias = _patch_bias(weights, size) if spec.patch_bias else None
        self._patches = TowerProduct(weight, bias)
        self._pixel_norm = _pixel_norm(weights, spec) if spec.pixel_norm else None
        self._class = _class_token(weights, size) if spec.class_token else None
        self._table: Tensor | None = None
        if isinstance(spec.positions, AxialPositions):
            shape = (2, spec.positions.side, size)
            self._table = _axial_table(weights, shape)
        elif spec.positions is not None and (rows := _rows_of_table(spec.positions, spec)):
            self._table = _table(weights, rows, size)
        self._first = TowerNorm(weights, "first_norm", size, spec.norm) if spec.first_norm else None
        self._patch_norm = (
            TowerNorm(weights, "patch_norm", size, spec.norm) if spec.patch_norm else None
        )
        form = LayerForm(
            spec.gated,
            spec.qkv_bias,
            spec.bias,
            spec.query_norms,
            spec.head_norms,
            spec.layer_scale,
            spec.value_norm,
            spec.output_norms,
            spec.clipped,
            spec.score_scale,
            kv_heads=spec.kv_heads or 0,
            pairs_adjacent=spec.rotary is not None and spec.rotary.adjacent,
            pairs_by_halves=spec.rotary is not None and spec.rotary.by_halves,
            pairs_by_axes=spec.rotary is not None and spec.rotary.by_axes,
        )
        self._layers = [
            self._layer(spec, weights, number, form, threads) for number in range(spec.num_layers)
        ]
        self._merging = None
        if spec.merging is not None:
            self._merging = Merging(spec, spec.merging, weights, threads)
        self._last = TowerNorm(weights, "last_norm", size, spec.norm) if spec.last_norm else None
        weights.ignore_those(lambda name: _unread(name, spec))
        self._spec = spec
        self._threads = threads

    @staticmethod
    def _layer(
        spec: TowerSpec, weights: Weights, number: int, form: LayerForm, threads: RowThreads
    ) -> TowerLayer:
        if spec.windows is None or not spec.windows.grid:
            return TowerLayer(spec, weights, number, form, threads)
        return DistanceLayer(spec, spec.windows, weights, number, form, threads)

    def work(self, picture: Picture) -> int:
        """Multiplications for a picture, more or less."""
        spec, patches = self._spec, len(picture.patches)
        if self._merging is not None:
            return self._work_around_merging(picture, self._merging)
        of_rows = self._patches.size + sum(layer.row_work for layer in self._layers)
        within = seen_together(picture, spec)
        if spec.windows is not None and spec.windows.grid:
            return patches * of_rows + sum(layer.seen_work(within) for layer in self._layers)
        narrow = 0 if spec.windows is None else spec.num_layers - len(spec.windows.whole)
        seen = attention_work(within, spec.hidden_size) * (spec.num_layers - narrow)
        if spec.windows is not None:
            seen += narrow * attention_work([spec.windows.side], spec.hidden_size) * patches
        return patches * of_rows + seen

    def _work_around_merging(self, picture: Picture, merging: Merging) -> int:
        spec, work = self._spec, self._patches.size * len(picture.patches)
        form = picture
        for number, layer in enumerate(self._layers):
            within = [form.per_tile] * form.tiles
            work += layer.row_work * sum(within) + attention_work(within, spec.hidden_size)
            if number == merging.behind:
                form = form.merged(spec.merged)
                work += merging.row_work * form.per_tile * form.tiles
        return work

    def pieces(
        self,
        picture: Picture,
        layout: PatchLayout,
        after: Callable[[int, Tensor], Pieces[None]],
    ) -> Pieces[Tensor]:
        """Returns [rows, hidden]: each tile's patches, or the squares of them that the tower
        merges, in the layout's order, after its class token where that is kept. `after` is what
        follows each layer: its number, and its output, where a class token is kept in any case."""
        spec = self._spec
        hidden = yield from self._embedded(picture, layout)
        angles = None
        if layout.angles is not None:
            angles = (layout.angles[0].to(hidden.device), layout.angles[1].to(hidden.device))
        outputs, lengths = {0: hidden}, layout.lengths
        for number, layer in enumerate(self._layers):
            within = lengths
            if layout.windows and spec.windows is not None and number not in spec.windows.whole:
                within = layout.windows
            hidden = yield from layer.pieces(hidden, within, angles, layout.seen)
            yield from after(number, hidden)
            if self._merging is not None and number == self._merging.behind:
                hidden = yield from self._merging.pieces(hidden, picture)
                lengths = [length // spec.merged**2 for length in lengths]
            if number + 1 in spec.taken:
                outputs[number + 1] = hidden
        if spec.taken:
            hidden = torch.cat([outputs[number] for number in spec.taken], 1)
        hidden = hidden if self._last is None else self._last(hidden)
        if spec.class_token and not spec.keeps_class:
            return hidden.unflatten(0, (picture.tiles, -1))[:, 1:].flatten(0, 1)
        return hidden

    def _embedded(self, picture: Picture, layout: PatchLayout) -> Pieces[Tensor]:
        # Cloned, because the alignment of memory may affect BLAS's order of summation.
        pixels = 2.0 * (picture.patches - 0.5) if self._spec.centred else picture.patches
        patches = self._patches.given(pixels).clone()
        if self._pixel_norm is not None:
            patches = self._pixel_norm(patches)
        hidden = yield from self._threads.mapped(self._patches, patches, each=self._patches.size)
        if self._patch_norm is not None:
            hidden = self._patch_norm(hidden)
        places = self._places(picture, layout)
        tiles = hidden.unflatten(0, (picture.tiles, -1))
        if places is not None:
            tiles = tiles + places
        if self._class is not None:
            first = self._class if self._table is None else self._class + self._table[0]
            tiles = torch.cat((first.expand(picture.tiles, 1, -1), tiles), 1)
        flat = layout.ordered(tiles.flatten(0, 1))
        return flat if self._first is None else self._first(flat)

    def _places(self, picture: Picture, layout: PatchLayout) -> Tensor | None:
        """Returns the position embeddings that are added to the patches of each tile, [patches,
        hidden], or [tiles, patches, hidden] where they differ; None without such."""
        positions, table = self._spec.positions, self._table
        if table is None:
            return None
        if isinstance(positions, AxialPositions):
            of_columns, of_rows = table[0, : picture.columns], table[1, : picture.rows]
            return (of_rows[:, None] + of_columns[None]).flatten(0, 1)
        if isinstance(positions, LearnedPositions) and positions.stretched:
            return stretched(table, positions, (picture.rows, picture.columns))
        if isinstance(positions, LearnedPositions):
            places = table_rows(picture, positions) + self._spec.class_token
            return table[places.to(table.device)]
        if layout.table is None:
            return None
        rows, shares = (each.to(table.device) for each in layout.table)
        # One vector after another: all of them together would take many times the picture's memory.
        found = table[rows[:, 0]] * shares[:, :1]
        for nth in range(1, rows.shape[1]):
            found += table[rows[:, nth]] * shares[:, nth, None]
        return found.to(table.dtype)


def _patch_matrix(weights: Weights, shape: tuple[int, ...]) -> Tensor:
    """[size, numbers of a patch]. shape: of the convolution that most files have."""
    if weights.has("patch_matrix.weight"):
        return weights.take("patch_matrix.weight", (shape[0], prod(shape[1:])))
    if weights.has("sam_embedding.weight"):  # a second tower may have such, too
        return weights.take("sam_embedding.weight", shape).flatten(1)
    if weights.has("patch_embedding.0.weight"):  # a kernel for each frame
        size, channels, frames, *sides = shape
        each = [
            weights.take(f"patch_embedding.{frame}.weight", (size, channels, *sides))
            for frame in range(frames)
        ]
        return torch.stack(each, 2).flatten(1)
    name = "patch_embedding.weight"
    if weights.has(name) and len(weights.shape(name)) == 2:  # colours come last
        flat = weights.take(name, (shape[0], prod(shape[1:])))
        return flat.unflatten(1, (*shape[2:], shape[1])).movedim(-1, 1).flatten(1).contiguous()
    return weights.take(name, shape).flatten(1)


def _pixel_norm(weights: Weights, spec: TowerSpec) -> TowerNorm:
    """The norm of a patch's pixels. Their colours come last in files without a flat matrix."""
    side, channels = spec.patch, spec.channels
    order = None
    if not weights.has("patch_matrix.weight"):
        places = torch.arange(side * side * channels).view(side, side, channels)
        order = places.movedim(-1, 0).flatten()
    return TowerNorm(weights, "pixel_norm", side * side * channels, spec.norm, order)


def _axial_table(weights: Weights, shape: tuple[int, int, int]) -> Tensor:
    """[2, side, size]: vectors of columns, then of rows."""
    name = "axial_positions.by_place"
    if weights.has(name):  # [side, 2, size]
        axes, side, size = shape
        return weights.take(name, (side, axes, size)).transpose(0, 1).contiguous()
    return weights.take("axial_positions.weight", shape)


def _patch_bias(weights: Weights, size: int) -> Tensor:
    name = "sam_embedding" if weights.has("sam_embedding.bias") else "patch_embedding"
    return weights.take(f"{name}.bias", (size,))


def _class_token(weights: Weights, size: int) -> Tensor:
    """Reads the class token, [size]."""
    if weights.has("cls_token"):
        return weights.take("cls_token", (1, 1, size))[0, 0]
    name = "class_embedding"
    wide = weights.has(name) and len(weights.shape(name)) == 3
    return weights.take(name, (1, 1, size) if wide else (size,)).view(size)


def _table(weights: Weights, rows: int, size: int) -> Tensor:
    """Reads the table of positions, [rows, size]."""
    for name in ("position_embeddings", "position_embedding"):
        if weights.has(name):
            return weights.take(name, (1, rows, size))[0]
    if weights.has("position_grid"):
        side = isqrt(rows)
        one = (1,) if len(weights.shape("position_grid")) == 4 else ()
        return weights.take("position_grid", (*one, side, side, size)).view(rows, size)
    if weights.has("positions_before_class"):
        return weights.take("positions_before_class", (rows, size)).roll(1, 0)
    return weights.take("position_embedding.weight", (rows, size))


def _rows_of_table(positions: LearnedPositions | RotaryPositions, spec: TowerSpec) -> int:
    if isinstance(positions, RotaryPositions):
        return positions.table**2
    return positions.side**2 + spec.class_token


def _unread(name: str, spec: TowerSpec) -> bool:
    """Whether a tensor belongs to what comes after the output that is taken: further layers, a
    norm, a head that pools."""
    if name.startswith(LAYER_OF):
        number = name.removeprefix(LAYER_OF).partition(".")[0]
        unread = range(spec.num_layers, spec.num_layers + spec.unread_layers)
        return number.isdigit() and int(number) in unread
    if name.startswith("merging.") and spec.merging is None:
        return True
    return name.startswith("head.") or (name.startswith("last_norm.") and not spec.last_norm)
