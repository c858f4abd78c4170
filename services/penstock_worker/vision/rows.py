"""Threads that share the rows of an item.

An item is encoded by itself. How its rows are divided follows from their number alone, and so do
the shapes of all products: no bit depends on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from penstock_worker.media.pieces import Pieces, whole

CHUNK = 128
"""Most rows that are multiplied together; results depend on it. On one thread with AVX-512,
products of 1,024 rows with 1,152 by 4,304 numbers run at 142 GFLOP/s as one, at 135 in chunks of
256 rows, 119 of 128, and 101 of 64; shorter ones employ more threads."""
BY_HEAD = 128
"""Rows that see one another, from which on a head's attention is a work of its own."""

PIECE = 50_000_000
"""Multiplications that each thread does at least before a pause: half a millisecond or so."""

Work = Callable[[], Tensor]


class RowThreads:
    """Computes an item's rows on several threads. Their operations are single-threaded."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads, "encode", torch.set_num_threads, (1,))

    def map(self, of_rows: Callable[..., Tensor], *given: Tensor) -> Tensor:
        """Returns of_rows(*given), which treats each row by itself: all are [rows, ...]."""
        return whole(self.mapped(of_rows, *given, each=0))

    def mapped(self, of_rows: Callable[..., Tensor], *given: Tensor, each: int) -> Pieces[Tensor]:
        """Does what `map` does, with pauses. each: multiplications of a row."""
        rows = given[0]
        if rows.is_cuda:
            return of_rows(*given)
        cuts = [slice(*ends) for ends in _chunks(len(rows))]
        works = [partial(of_rows, *(x[cut] for x in given)) for cut in cuts]
        return torch.cat((yield from self._in_pieces(works, each * len(rows))))

    def each(self, of_part: Callable[..., Tensor], *given: Tensor, each: int) -> Pieces[Tensor]:
        """Does what `mapped` does, part by part: of_part gets one row of each, [1, ...]."""
        if given[0].is_cuda:
            return of_part(*given)
        parts = zip(*(x.split(1) for x in given), strict=True)
        works = [partial(of_part, *(x.contiguous() for x in part)) for part in parts]
        return torch.cat((yield from self._in_pieces(works, each * len(works))))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
        """softmax(q k^T / sqrt(head size)) v within each part of `lengths` rows, in both
        directions. All are [rows, heads, head size]; rows beyond are padding, and become zeros."""
        return whole(self.attended(query, key, value, lengths))

    def attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: list[int],
        scale: float | None = None,
        mask: Tensor | None = None,
    ) -> Pieces[Tensor]:
        """`attend` with pauses. scale: of products; None: that of `attend`. mask: bool, [length,
        length] of parts that are equally long: which rows each of them sees; None: all. Values may
        have heads of another size."""
        out = query.new_zeros(value.shape)
        works: list[Work] = []
        start = 0
        for length in lengths:
            rows = slice(start, start + length)
            heads = range(query.shape[1]) if length >= BY_HEAD else (slice(None),)
            for head in (slice(None),) if query.is_cuda else heads:
                own = slice(head, head + 1) if isinstance(head, int) else head
                parts = [each[rows, own] for each in (query, key, value, out)]
                works.append(partial(_attend, *parts, scale=scale, mask=mask))
            start += length
        width = (query[0].numel() + value[0].numel()) // 2
        yield from self._in_pieces(works, attention_work(lengths, width))
        return out

    def _in_pieces(self, works: Sequence[Work], multiplications: int) -> Pieces[list[Tensor]]:
        """multiplications: of all works together, which are about equally long."""
        each = multiplications // max(len(works), 1)
        count = len(works) if not each else self._threads * max(PIECE // each, 1)
        made: list[Tensor] = []
        for start in range(0, len(works), max(count, 1)):
            some = works[start : start + count]
            made += self._all(some)
            yield each * len(some)
        return made

    def _all(self, works: Sequence[Work]) -> list[Tensor]:
        if self._pool is None or len(works) == 1:
            return [work() for work in works]
        # The mode is a thread's own.
        mode = torch.is_inference_mode_enabled()
        return list(self._pool.map(lambda work: _in_mode(work, mode), works))


ONE_THREAD = RowThreads()


def attention_work(lengths: Sequence[int], width: int) -> int:
    """Multiplications of an attention within parts of these lengths. width: heads * head size."""
    return 2 * width * sum(length**2 for length in lengths)


def _in_mode(work: Work, mode: bool) -> Tensor:
    with torch.inference_mode(mode):
        return work()


def _chunks(rows: int) -> list[tuple[int, int]]:
    """First row and end of each chunk: an even number of them, unless there is one."""
    count = 1 if rows <= CHUNK else 2 * -(-rows // (2 * CHUNK))
    ends = [rows * number // count for number in range(count + 1)]
    return list(pairwise(ends))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    *,
    scale: float | None,
    mask: Tensor | None = None,
) -> Tensor:
    """Computes attention; query, key, value and out are [rows, heads, head size]."""
    # Newly allocated, because the alignment may affect BLAS's order of summation.
    query, key, value = (each.transpose(0, 1).contiguous()[None] for each in (query, key, value))
    found = functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    return out.copy_(found[0].transpose(0, 1))
