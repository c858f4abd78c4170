"""A sequence's block table: which physical block holds which of its tokens."""

from __future__ import annotations

from penstock_engine.kv.cache import KVCache


class BlockTable:
    """Blocks in token order: token t lies in blocks[t // block_size], at row t % block_size."""

    __slots__ = ("block_size", "blocks")

    def __init__(self, block_size: int, blocks: list[int] | None = None) -> None:
        self.block_size = block_size
        self.blocks: list[int] = blocks or []

    @property
    def capacity(self) -> int:
        """Tokens that the table has room for."""
        return len(self.blocks) * self.block_size

    def missing(self, num_tokens: int) -> int:
        """Blocks to add before `num_tokens` tokens fit."""
        return max(0, blocks_for(num_tokens, self.block_size) - len(self.blocks))

    def grow(self, cache: KVCache, num_tokens: int) -> list[int]:
        """Makes room for `num_tokens` tokens; returns the new blocks. Raises OutOfBlocks."""
        new = cache.take(self.missing(num_tokens))
        self.blocks += new
        return new

    def release(self, cache: KVCache) -> None:
        """Gives every block back."""
        cache.release(self.blocks)
        self.blocks = []


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)
