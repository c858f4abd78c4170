"""How a number of things is divided among places that each take neighbours."""

from __future__ import annotations

from itertools import pairwise


def deal(count: int, hands: int) -> list[range]:
    """Splits 0 … count - 1 into consecutive ranges whose sizes differ by at most one, the larger
    ones first."""
    least, extra = divmod(count, hands)
    starts = [hand * least + min(hand, extra) for hand in range(hands + 1)]
    return [range(low, high) for low, high in pairwise(starts)]
