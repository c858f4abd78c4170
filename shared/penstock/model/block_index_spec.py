"""The index of blocks of positions that a layer's attention reads, as data."""

from __future__ import annotations

import msgspec


class BlockIndexSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An index that chooses the blocks of positions that attention reads (MiniMax, "MiniMax M3",
    2026). It has a head for each KV head, and each chooses for the queries of its own: a block's
    score is the largest product of the head's query with the one key of a token in it that the row
    sees. Queries and keys are made of the hidden state, normalised head by head as the model's norm
    says, and rotate as attention's do. Sizes are element counts."""

    heads: int
    size: int
    """Size of a head's query, and of a token's key."""
    block: int
    """Positions of a block: the first one has those from 0 on."""
    most: int
    """Blocks that a token reads, those with the highest scores, of equal ones the first; all that
    it sees if they aren't more."""
    local: int
    """So many of these, at least 1 and at most `most`, are the token's own block and those before
    it, whatever their scores are."""

    @property
    def keys(self) -> int:
        """Positions that a token reads at most."""
        return self.most * self.block
