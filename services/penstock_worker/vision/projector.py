"""Turns a tower's vectors into rows of the decoder's size."""

from __future__ import annotations

from typing import Protocol

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import UnsupportedModel
from penstock.model.document_spec import DocumentProjector, PageProjector
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import (
    AdapterProjector,
    AnyresProjector,
    ClassProjector,
    GatedMergerProjector,
    HalvingProjector,
    MergerProjector,
    MLPProjector,
    NormedTwiceProjector,
    PlainProjector,
    PooledProjector,
    PoolProjector,
    ProbeProjector,
    ResamplerProjector,
    SheetProjector,
    ShuffleProjector,
    SquareMLPProjector,
    SquarePoolProjector,
    TwiceProjector,
    TwoTowersProjector,
    WindowProjector,
)
from penstock.model.tower_spec import TowerSpec, VisionSpec
from penstock_kernels import reference
from penstock_worker.media.embedder import PictureEmbedder
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.convolutions import Halving
from penstock_worker.vision.crops import Crops
from penstock_worker.vision.documents import Documents
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.mergers import GatedMerger, Merger, TwiceOverSquares
from penstock_worker.vision.pages import Pages
from penstock_worker.vision.picture import Picture, anyres_of, in_lines, in_squares, pooled_side
from penstock_worker.vision.resampler import Resampler
from penstock_worker.vision.rows import ONE_THREAD, RowThreads
from penstock_worker.vision.sheets import Sheets
from penstock_worker.vision.two_towers import TwoTowers
from penstock_worker.vision.window_queries import Windows
from penstock_worker.weights.weights import Weights


class Projector(Protocol):
    """Maps a tower's output, [patches, hidden], to [rows, the decoder's hidden size]."""

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        """`threads`: that share the rows."""


class _MLP:
    def __init__(
        self,
        spec: MLPProjector | AnyresProjector,
        weights: Weights,
        inputs: int,
        outputs: int,
        inner: int = 0,
        *,
        gated: bool = False,
    ) -> None:
        """inner: outputs of the first product; 0: as many as of the second.  gated: as
        SquareMLPProjector has it."""
        inner = inner or outputs
        seen = inner // 2 if gated else inner
        self._first = TowerProduct.load(weights, [("projector.1", inner)], inputs, bias=spec.bias)
        self._second = TowerProduct.load(weights, [("projector.2", outputs)], seen, bias=spec.bias)
        self._activation = spec.activation
        self._gated = gated
        self.row_work = self._first.size + self._second.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        return (yield from threads.mapped(self._of_rows, vectors, each=self.row_work))

    def _of_rows(self, vectors: Tensor) -> Tensor:
        if self._gated:
            first, gate = self._first(vectors).chunk(2, 1)
            gated = reference.gated_activation(torch.cat((gate, first), 1), "silu")
            return self._second(gated)
        return self._second(reference.plain_activation(self._first(vectors), self._activation))


class _Linear:
    def __init__(self, weights: Weights, inputs: int, outputs: int) -> None:
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs)
        self.row_work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        rows = yield from threads.mapped(self._product, vectors, each=self.row_work)
        return torch.cat((rows, rows.new_zeros(1, rows.shape[1])))


class _Shuffle:
    def __init__(self, spec: ShuffleProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._factor = spec.factor
        wide = inputs * spec.factor**2
        self._product = TowerProduct.load(weights, [("projector", outputs)], wide, bias=False)
        self.row_work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        """Squares are in order of their rows, and a square's patches too."""
        squares = in_squares(vectors, picture, self._factor)
        return (yield from threads.mapped(self._product, squares, each=self.row_work))


class _SquareMLP:
    def __init__(
        self, spec: SquareMLPProjector, weights: Weights, inputs: int, outputs: int
    ) -> None:
        self._spec = spec
        wide = inputs * spec.factor**2
        self._norm: TowerNorm | None = None
        if spec.norm is not None:
            size = inputs if spec.merged else wide
            self._norm = TowerNorm(weights, "projector.norm", size, spec.norm)
        self._merging: TowerProduct | None = None
        if spec.merged:
            # The file has a square's vectors number by number: the first of each, the second, ...
            merging = weights.take("projector.merging.weight", (inputs, wide))
            by_patch = merging.unflatten(1, (inputs, -1)).transpose(1, 2).flatten(1)
            self._merging = TowerProduct(by_patch.contiguous(), None)
            wide = inputs
        self._inner = _MLP(
            MLPProjector(activation=spec.activation, bias=spec.bias),
            weights,
            wide,
            outputs,
            spec.inner,
            gated=spec.gated,
        )
        self.row_work = self._inner.row_work
        if self._merging is not None:
            self.row_work += self._merging.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        factor = self._spec.factor
        normed = self._norm or (lambda x: x)
        if self._merging is None:
            squares = normed(in_squares(vectors, picture, factor))
        else:
            apart = in_squares(normed(vectors), picture, factor)
            squares = yield from threads.mapped(self._merging, apart, each=self._merging.size)
        return (yield from self._inner.pieces(squares.contiguous(), picture, threads))


class _Adapter:
    def __init__(self, spec: AdapterProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._factor = spec.factor
        at = "projector.adapter"
        shapes = [
            (f"{at}.1", spec.inner, inputs * spec.factor**2),
            (f"{at}.2", spec.inner, spec.inner),
        ]
        self._inner = [
            TowerProduct.load(weights, [(name, rows)], columns, bias=False)
            for name, rows, columns in shapes
        ]
        self._last = TowerProduct.load(weights, [("projector.1", outputs)], spec.inner, bias=False)
        self.row_work = self._last.size + sum(product.size for product in self._inner)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        squares = in_squares(vectors, picture, self._factor)
        return (yield from threads.mapped(self._of_squares, squares, each=self.row_work))

    def _of_squares(self, squares: Tensor) -> Tensor:
        for product in self._inner:
            squares = reference.plain_activation(product(squares), "gelu")
        return self._last(squares)


class _Anyres:
    def __init__(
        self, vision: VisionSpec, spec: AnyresProjector, weights: Weights, inputs: int, outputs: int
    ) -> None:
        self._inner = _MLP(spec, weights, inputs, outputs)
        self._newline = weights.take("projector.newline", (outputs,))
        self.row_work = self._inner.row_work
        self._vision, self._spec = vision, spec

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        rows = yield from self._inner.pieces(vectors, picture, threads)
        if picture.frames:
            return self._of_frames(rows, picture)
        shape = anyres_of(picture, self._vision, self._spec)
        return in_lines(rows, picture.rows, shape, self._newline)

    def _of_frames(self, rows: Tensor, picture: Picture) -> Tensor:
        """Half of each frame's rows and columns, and the vector that ends a line after all."""
        planes = rows.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        planes = planes.permute(0, 3, 1, 2).contiguous()
        size = list(pooled_side(picture))
        pooled = functional.interpolate(planes, size=size, mode="bilinear")
        lines = pooled.permute(0, 2, 3, 1).flatten(0, 2)
        return torch.cat((lines, self._newline[None])).contiguous()


class _Pool:
    def __init__(self, spec: PoolProjector, weights: Weights, inputs: int, outputs: int) -> None:
        weight = weights.take("projector.weight", (inputs, outputs))
        self._product = TowerProduct(weight.t().contiguous(), None)
        # The sum is made in float32, as in the norms of the decoder.
        self._weight = weights.take("projector.norm.weight", (inputs,), torch.float32)
        self._weight += spec.plus_one
        self._norm = NormSpec(eps=spec.eps)
        self._side = spec.side
        self.row_work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        side, size = self._side, vectors.shape[-1]
        apart = vectors.float().view(
            picture.tiles, side, picture.rows // side, side, picture.columns // side, size
        )
        means = apart.mean((2, 4)).view(-1, size).to(vectors.dtype)
        yield 0
        return self._product(reference.rms_norm(means, self._weight, self._norm.eps))


class _SquarePool:
    def __init__(
        self, spec: SquarePoolProjector, weights: Weights, inputs: int, outputs: int
    ) -> None:
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs, bias=False)
        # Means are so large that they are standardised in float32.
        self._standard: tuple[Tensor, Tensor] | None = None
        if spec.standardised:
            mean, factor = (
                weights.take(f"projector.std_{name}", (inputs,), torch.float32)
                for name in ("bias", "scale")
            )
            self._standard = mean, factor
        self._ones = torch.ones(inputs, dtype=weights.dtype, device=weights.device)
        self._spec = spec
        self.row_work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        factor, size = self._spec.factor, vectors.shape[1]
        squares = in_squares(vectors, picture, factor).unflatten(1, (factor**2, size))
        means = squares.float().mean(1).to(vectors.dtype).float()
        if self._spec.rooted:
            means = means * size**0.5
        if self._standard is not None:
            mean, scale = self._standard
            means = (means - mean) * scale
        rows = reference.rms_norm(means.to(vectors.dtype), self._ones, self._spec.eps)
        return (yield from threads.mapped(self._product, rows, each=self.row_work))


def load_projector(
    spec: VisionSpec, weights: Weights, outputs: int, threads: RowThreads = ONE_THREAD
) -> Projector:
    """`outputs` is the decoder's hidden size. threads: those that `pieces` is given. Raises
    UnsupportedModel for weights that don't fit."""
    projector, inputs = spec.projector, spec.tower.width
    match projector:
        case MLPProjector():
            return _MLP(projector, weights, inputs, outputs)
        case PlainProjector():
            return _Linear(weights, inputs, outputs)
        case NormedTwiceProjector():
            return PictureEmbedder(projector, weights, inputs, outputs)
        case ShuffleProjector():
            return _Shuffle(projector, weights, inputs, outputs)
        case SquareMLPProjector():
            return _SquareMLP(projector, weights, inputs, outputs)
        case AdapterProjector():
            return _Adapter(projector, weights, inputs, outputs)
        case WindowProjector():
            return Windows(spec, projector, weights, outputs)
        case AnyresProjector():
            return _Anyres(spec, projector, weights, inputs, outputs)
        case GatedMergerProjector():
            return GatedMerger(projector, weights, inputs, outputs)
        case TwiceProjector():
            return TwiceOverSquares(projector, weights, inputs, outputs)
        case MergerProjector():
            return Merger(projector, weights, inputs, outputs)
        case PoolProjector():
            return _Pool(projector, weights, inputs, outputs)
        case SquarePoolProjector():
            return _SquarePool(projector, weights, inputs, outputs)
        case ClassProjector():
            return ClassVector(projector, weights, inputs, outputs)
        case ProbeProjector():
            return ProbeVector(spec.tower, weights)
        case SheetProjector():
            return Sheets(projector, weights, inputs, outputs)
        case HalvingProjector():
            return Halving(projector, weights, inputs, outputs)
        case PooledProjector():
            return Crops(projector, weights, inputs, outputs)
        case ResamplerProjector():
            return Resampler(projector, weights, inputs, outputs)
        case TwoTowersProjector() if spec.second is not None:
            return TwoTowers(spec, projector, spec.second, weights, outputs, threads)
        case TwoTowersProjector():
            raise UnsupportedModel("two towers are needed, and one is described")
        case DocumentProjector():
            return Documents(spec.tower, projector, weights, outputs, threads)
        case PageProjector():
            return Pages(spec.tower, projector, weights, outputs, threads)


def load_deepstack(spec: VisionSpec, weights: Weights, outputs: int) -> list[Projector]:
    """The projectors of VisionSpec.deepstack_layers. Raises UnsupportedModel for weights that don't
    fit."""
    projector = spec.projector
    if not isinstance(projector, MergerProjector):
        return []
    behind = msgspec.structs.replace(projector, behind=True)
    return [
        Merger(behind, weights, spec.tower.hidden_size, outputs, f"projector.deepstack.{number}")
        for number in range(len(spec.deepstack_layers))
    ]


# Projectors that make one row of a picture: its vector in the space that texts share.
#
# Sources: Radford et al., "CLIP", 2021; Zhai et al., "SigLIP", 2023.


class ClassVector:
    """What the class token gives."""

    def __init__(self, spec: ClassProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._norm = TowerNorm(weights, "last_norm", inputs, spec.norm)
        shape = ("head.projection", outputs)
        self._product = TowerProduct.load(weights, [shape], inputs, bias=False)
        self.row_work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        first = vectors.unflatten(0, (picture.tiles, -1))[:, 0].contiguous()
        yield 0
        return self._product(self._norm(first))


class ProbeVector:
    """What a learned query finds among all patches, and a feed-forward makes of it."""

    def __init__(self, tower: TowerSpec, weights: Weights) -> None:
        size, inner = tower.hidden_size, tower.intermediate_size
        probe = weights.take("head.probe", (1, 1, size))[0]
        matrix = weights.take("head.attention.in_proj_weight", (3 * size, size))
        bias = weights.take("head.attention.in_proj_bias", (3 * size,))
        # The query is the same for all pictures.
        query = functional.linear(probe, matrix[:size], bias[:size])
        self._query = query.unflatten(1, (tower.num_heads, -1))
        self._keys = TowerProduct(matrix[size:].clone(), bias[size:].clone())
        self._mixed = TowerProduct.load(weights, [("head.attention.out_proj", size)], size)
        self._norm = TowerNorm(weights, "head.layernorm", size, tower.norm)
        self._up = TowerProduct.load(weights, [("head.mlp.fc1", inner)], size)
        self._down = TowerProduct.load(weights, [("head.mlp.fc2", size)], inner)
        self._tower = tower
        self.row_work = self._mixed.size + self._up.size + self._down.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        seen = yield from threads.mapped(self._keys, vectors, each=self._keys.size)
        found = [self._found(tile) for tile in seen.chunk(picture.tiles)]
        return self._behind(torch.cat(found))

    def _found(self, seen: Tensor) -> Tensor:
        """[1, hidden] of one tile's keys and values, [patches, 2 * hidden]."""
        apart = seen.unflatten(1, (2, self._tower.num_heads, -1)).permute(1, 2, 0, 3)
        key, value = (each.contiguous()[None] for each in apart.unbind(0))
        query = self._query.transpose(0, 1).contiguous()[None]
        found = functional.scaled_dot_product_attention(query, key, value)
        return found[0].transpose(0, 1).flatten(1)

    def _behind(self, found: Tensor) -> Tensor:
        mixed = self._mixed(found.contiguous())
        inner = reference.plain_activation(self._up(self._norm(mixed)), self._tower.activation)
        return mixed + self._down(inner)
