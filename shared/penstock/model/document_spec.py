"""Makes the rows of a page: convolutions over the patches of a tower, then either layers in which
learned queries follow these (DeepSeek-OCR 2) or a second tower (DeepSeek-OCR), and a product.

Sources: DeepSeek-AI, "DeepSeek-OCR: contexts optical compression", 2025, and "DeepSeek-OCR 2:
visual causal flow", 2026.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.layer_spec import NormSpec
from penstock.model.projector_form import QUARTER, QuarterProjector


class QueryLayersSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers over a tile's vectors followed by as many queries: vectors attend to all vectors, a
    query to these, to itself and to the queries before it."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    norm: NormSpec
    theta: float = 10_000.0
    """Base of the rotation, by a vector's place in the tile's sequence."""
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu"] = "silu"
    """What a gate's numbers go through."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class DocumentProjector(QuarterProjector, frozen=True, kw_only=True, tag="document"):
    """One row for each query of a tile: its output after `layers` and a norm, and a product with a
    bias. A learned vector follows the last tile's rows."""

    channels: tuple[int, int]
    """Outputs of the convolutions: of the first two, each of which a norm follows, and of the
    third. The fourth has `layers.hidden_size`. The last two go two places at a time."""
    norm: NormSpec
    """Form of the norms that follow convolutions."""
    layers: QueryLayersSpec
    queries: tuple[int, ...]
    """How many queries each table has: a tile has those of the first one with as many as the tile
    has vectors, or of the last."""

    def vectors_of(self, rows: int, columns: int) -> int:
        """Vectors that the convolutions make of a tile of so many patches."""
        return -(-rows // QUARTER) * -(-columns // QUARTER)

    def table_of(self, vectors: int) -> int:
        """Number of the table of queries for a tile of so many vectors."""
        fitting = (at for at, count in enumerate(self.queries) if vectors <= count)
        return next(fitting, len(self.queries) - 1)


class PageLayersSpec(msgspec.Struct, frozen=True, kw_only=True):
    """CLIP's layers over a class token and a tile's vectors, to which a table of positions is
    added: a norm, and layers with biases."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm: NormSpec
    side: int
    """Rows, and columns, of the table, which is stretched over a tile."""
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu"] = "quick_gelu"

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class PageProjector(QuarterProjector, frozen=True, kw_only=True, tag="page"):
    """One row for each vector of the convolutions: a product with a bias of the output of `layers`
    and of the vector itself. The rows of tiles are lines of one picture, each of which a learned
    vector ends; another one follows the page's, which is the last tile (DeepSeek-AI, "DeepSeek-OCR:
    contexts optical compression", 2025)."""

    channels: tuple[int, int]
    """Outputs of the convolutions, as DocumentProjector has them."""
    norm: NormSpec
    """Form of the norms that follow convolutions."""
    layers: PageLayersSpec

    def rows_of(self, rows: int, columns: int, form: tuple[int, int]) -> int:
        """Rows of tiles of so many patches. form: rows and columns of tiles."""
        high, wide = -(-rows // QUARTER) * form[0], -(-columns // QUARTER) * form[1]
        return high * (wide + 1)
