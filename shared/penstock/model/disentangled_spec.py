"""DeBERTa's attention: what a score gets besides by how far query and key are apart.

Source: He et al., "DeBERTa: Decoding-enhanced BERT with disentangled attention", 2021; He et al.,
"DeBERTaV3", 2023.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class DisentangledSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table stands for each distance, or for several: keys and queries are made of the
    rows as they are of tokens. A score is the product of a query and a key, plus that of the query
    and the distance's key, plus that of the key and the distance's query."""

    span: int
    """Rows for distances in one direction; the table has twice as many."""
    farthest: int = 0
    """Distance from which on all share the last row: beyond half of the span, rows are shared on a
    logarithmic scale. 0: each distance has a row of its own, up to the span."""
    keys: bool = True
    """Whether distances have keys."""
    queries: bool = True
    """Whether distances have queries."""
    shared: bool = True
    """Whether the tokens' matrices make them; else there are further ones."""
    normed: bool = False
    """Whether the table's rows are normalised."""
    convolution: Literal["", "gelu", "tanh"] = ""
    """Activation after the convolution over neighbouring embeddings that is added to the first
    layer's output; empty: there is none."""

    @property
    def terms(self) -> int:
        """Products that a score is the sum of."""
        return 1 + self.keys + self.queries
