"""Which queries and keys a tile has, and the list of a launch's (tile, split) pairs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def query_tile(tile, tile_sequences, tile_firsts, query_lens, seq_lens):
    """Returns (the tile's sequence, its first query there, the sequence's number of new tokens, the
    number of tokens before these)."""
    sequence = tl.load(tile_sequences + tile)
    first = tl.load(tile_firsts + tile)
    queries = tl.load(query_lens + sequence)
    return sequence, first, queries, tl.load(seq_lens + sequence) - queries


@triton.jit
def first_seen(position, window, CHUNKS: tl.constexpr):
    """Returns the first key that a query sees: `window` is the size of a window that ends with it,
    or of chunks of positions."""
    if CHUNKS:
        first = position // window * window
    else:
        first = position - window + 1
    return first


@triton.jit
def splits_of_tiles(
    tile_sequences,
    tile_firsts,
    tile_ends,
    query_lens,
    seq_lens,
    window,
    tiles,
    TILES: tl.constexpr,
    QUERIES: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPANS: tl.constexpr,
):
    """Returns [TILES] int32: how many splits of keys each tile sees; 0 after the last of `tiles`
    tiles, and for padding."""
    tile = tl.arange(0, TILES)
    listed = tile < tiles
    sequence = tl.load(tile_sequences + tile, mask=listed, other=0)
    first = tl.load(tile_firsts + tile, mask=listed, other=0)
    queries = tl.load(query_lens + sequence, mask=listed, other=0)
    before = tl.load(seq_lens + sequence, mask=listed, other=0) - queries
    end = before + tl.minimum(first + QUERIES, queries)
    if SPANS:
        end = tl.load(tile_ends + tile, mask=listed, other=0)
    splits = tl.cdiv(end, SPLIT)
    if WINDOW:
        splits -= tl.maximum(0, first_seen(before + first, window, CHUNKS)) // SPLIT
    return tl.where(listed & (queries > 0), tl.maximum(splits, 0), 0)
