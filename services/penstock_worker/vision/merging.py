"""What makes one vector of each square of patches between two layers of a tower.

Source: OpenBMB, "MiniCPM-V 4.6", 2026.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from penstock.model.tower_spec import MergingSpec, TowerSpec
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture, in_squares
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights


class Merging:
    """Maps [patches, hidden], row by row, to [squares, hidden]. Each square is computed by
    itself."""

    def __init__(
        self, tower: TowerSpec, spec: MergingSpec, weights: Weights, threads: RowThreads
    ) -> None:
        size, self._patches = tower.hidden_size, spec.side**2
        wide = size * self._patches
        self._first = TowerNorm(weights, "merging.norm1", size, tower.norm)
        qkv = [(f"merging.{part}_proj", size) for part in "qkv"]
        self._qkv = TowerProduct.load(weights, qkv, size)
        self._mixed = TowerProduct.load(weights, [("merging.out_proj", size)], size)
        self._second = TowerNorm(weights, "merging.norm2", wide, tower.norm)
        self._up = TowerProduct.load(weights, [("merging.up_proj", spec.inner)], wide)
        self._down = TowerProduct.load(weights, [("merging.down_proj", size)], spec.inner)
        self._side, self._heads, self._threads = spec.side, tower.num_heads, threads
        self.behind = spec.behind
        """Number of the layer before it."""

    @property
    def row_work(self) -> int:
        """Multiplications for each square."""
        own = self._patches * (self._qkv.size + self._mixed.size)
        return own + self._up.size + self._down.size

    def pieces(self, hidden: Tensor, picture: Picture) -> Pieces[Tensor]:
        """picture: as it came."""
        squares = in_squares(hidden, picture, self._side)
        return (yield from self._threads.mapped(self._of_squares, squares, each=self.row_work))

    def _of_squares(self, squares: Tensor) -> Tensor:
        count, wide = squares.shape
        patches = squares.view(count * self._patches, -1)
        patches = patches + self._attended(patches)
        inner = self._up(self._second(patches.view(count, wide)))
        added = self._down(reference.plain_activation(inner, "gelu_tanh"))
        return added + patches.view(count, self._patches, -1).mean(1)

    def _attended(self, patches: Tensor) -> Tensor:
        """What the patches of each square see in one another, [patches, hidden]."""
        three = self._qkv(self._first(patches))
        apart = three.view(-1, self._patches, 3, self._heads, patches.shape[1] // self._heads)
        query, key, value = apart.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        found = functional.scaled_dot_product_attention(query, key, value)
        return self._mixed(found.transpose(1, 2).reshape(len(patches), -1))
