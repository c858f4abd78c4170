"""Llama 3.2 Vision's tower: all tiles of a canvas see one another, in layers before and after a
norm.

Source: Grattafiori et al., "The Llama 3 herd of models", 2024, section 7; what it computes, as
transformers' MllamaVisionModel, but for the layers whose states are taken: their inputs, as the
makers' own code has it and transformers' once had, not their outputs. Tiles without pixels, and
rows that fill a tile up to a multiple of ROUNDED, are seen by all others, but not by each other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.forms.aspects import aspect_forms
from penstock.model.layer_spec import NormSpec
from penstock.model.tower_spec import AspectSpec, TowerSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import LayerForm, TowerLayer, TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.places import PatchLayout
from penstock_worker.vision.rows import RowThreads, attention_work
from penstock_worker.weights.weights import Weights

ROUNDED = 8
"""A tile's rows are filled up with zeros to a multiple of it."""
GLOBAL = "global."
"""Prefix of our names of the layers after the norm."""
OUTER_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
"""Form of the norms before and after the first layers, whatever the file says of others."""
FORM = LayerForm(qkv_bias=False, out_bias=False)


class AspectTower:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(
        self, spec: TowerSpec, aspects: AspectSpec, weights: Weights, threads: RowThreads
    ) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        size, side = spec.hidden_size, spec.patch
        self._forms = aspect_forms(aspects.most)
        kernel = (size, spec.channels, side, side)
        self._patches = TowerProduct(
            weights.take("patch_embedding.weight", kernel).flatten(1), None
        )
        self._class = weights.take("class_embedding", (size,))
        patches = _tile_rows(aspects)
        self._places = weights.take("places", (patches, size))
        gate = weights.take("places.gate", (1,)).tanh()
        self._places = (1 - gate) * self._places
        forms = len(self._forms) + 1  # the first one stands for no picture
        tables = weights.take("places.tiles.weight", (forms, aspects.most * patches * size))
        self._of_tiles = tables.view(forms, aspects.most, patches, size) * gate
        self._before, self._after = (
            weights.take(f"{name}.weight", (forms, aspects.most * size)).view(forms, -1, 1, size)
            * weights.take(f"{name}.gate", (1,)).tanh()
            for name in ("tiles_before", "tiles_behind")
        )
        self._first, self._last = (
            TowerNorm(weights, name, size, OUTER_NORM) for name in ("first_norm", "last_norm")
        )
        self._layers = [
            AspectLayer(spec, weights, number, FORM, threads) for number in range(spec.num_layers)
        ]
        self._global = [
            GatedAspectLayer(spec, weights, number, FORM, threads, GLOBAL)
            for number in range(aspects.global_layers)
        ]
        self._spec, self._aspects, self._threads = spec, aspects, threads

    def work(self, picture: Picture) -> int:
        """Multiplications for a picture, more or less."""
        rows, layers = self._aspects.most * self._rounded, [*self._layers, *self._global]
        seen = attention_work([rows], self._spec.hidden_size)
        of_layers = sum(rows * layer.row_work + seen for layer in layers)
        return len(picture.patches) * self._patches.size + of_layers

    @property
    def _rounded(self) -> int:
        """Rows of a tile, filled up."""
        return -(-_tile_rows(self._aspects) // ROUNDED) * ROUNDED

    def pieces(
        self, picture: Picture, layout: PatchLayout, after: Callable[[int, Tensor], Pieces[None]]
    ) -> Pieces[Tensor]:
        """Returns [rows, width]: those of each tile's class token and patches, tile by tile.
        `after` is what follows each layer: its number, and its output."""
        hidden = yield from self._embedded(picture)
        lengths, filling = [len(hidden)], self._filling(picture).to(hidden.device)
        inputs: list[Tensor] = []
        for number, layer in enumerate(self._layers):
            if number in self._aspects.taken:
                inputs.append(self._shown(hidden, picture))
            hidden = yield from layer.pieces(hidden, lengths, None, filling)
            yield from after(number, hidden)
        hidden = self._last(hidden).view(self._aspects.most, self._rounded, -1)
        hidden = (hidden + self._after[self._form(picture)]).flatten(0, 1)
        for number, layer in enumerate(self._global, len(self._layers)):
            hidden = yield from layer.pieces(hidden, lengths, None, filling)
            yield from after(number, hidden)
        # Of the layers' inputs, the numbers at one place stand next to each other.
        given = torch.stack(inputs, -1).flatten(1) if inputs else hidden[:0]
        found = self._shown(hidden, picture)
        return torch.cat((found, given), 1) if inputs else found

    def _embedded(self, picture: Picture) -> Pieces[Tensor]:
        """[most tiles * rows of a tile, filled up, hidden]."""
        most, form, size = self._aspects.most, self._form(picture), self._spec.hidden_size
        patches = self._patches.given(picture.patches).clone()
        made = yield from self._threads.mapped(self._patches, patches, each=self._patches.size)
        tiles = made.new_zeros(most, picture.per_tile, size)
        tiles[: picture.tiles] = made.view(picture.tiles, picture.per_tile, size)
        tiles = tiles + self._before[form]
        tiles = torch.cat((self._class.expand(most, 1, size), tiles), 1)
        tiles = self._first((tiles + self._places + self._of_tiles[form]).flatten(0, 1))
        whole = tiles.new_zeros(most, self._rounded, size)
        whole[:, : 1 + picture.per_tile] = tiles.view(most, -1, size)
        return whole.flatten(0, 1)

    def _form(self, picture: Picture) -> int:
        """The canvas's number; 0 stands for no picture."""
        return 1 + self._forms.index(picture.form)

    def _filling(self, picture: Picture) -> Tensor:
        """[1, rows] bool: which rows are of no picture."""
        filling = torch.ones(self._aspects.most, self._rounded, dtype=torch.bool)
        filling[: picture.tiles, : 1 + picture.per_tile] = False
        return filling.view(1, -1)

    def _shown(self, hidden: Tensor, picture: Picture) -> Tensor:
        """The rows of the picture's own tiles."""
        tiles = hidden.view(self._aspects.most, self._rounded, -1)
        return tiles[: picture.tiles, : 1 + picture.per_tile].flatten(0, 1).contiguous()


class AspectLayer(TowerLayer):
    """A layer in which rows that fill up see none of their like. `pieces` gets them as `seen`."""

    def _seen_in_part(self, three: Tensor, lengths: list[int], seen: Tensor) -> Pieces[Tensor]:
        query, key, value = three.unbind(1)
        filling = seen[0]
        mask = (filling[:, None] & filling[None]).logical_not() if bool(filling.any()) else None
        scale = self._form.scale
        return (yield from self._threads.attended(query, key, value, lengths, scale, mask))


class GatedAspectLayer(AspectLayer):
    """An AspectLayer whose halves are weighed by learned gates."""

    def __init__(
        self,
        spec: TowerSpec,
        weights: Weights,
        number: int,
        form: LayerForm,
        threads: RowThreads,
        within: str,
    ) -> None:
        super().__init__(spec, weights, number, form, threads, within)
        at = f"{within}layers.{number}"
        self._scales = [weights.take(f"{at}.gate{half}", (1,)).tanh() for half in (1, 2)]


def _tile_rows(aspects: AspectSpec) -> int:
    """Rows of a tile, the class token's among them."""
    return 1 + aspects.patches
