"""What ranks say of their parts of blocks that are kept elsewhere."""

from __future__ import annotations

import itertools

import pytest

from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.elsewhere import WantedKV
from penstock_engine.kv.groups import KVGroups
from penstock_engine.waiting.disk_kv import DiskFetch, UnfitAnswer


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_what_all_ranks_have_counts(order: tuple[int, ...]) -> None:
    wanted = WantedKV(KVGroups(16), KVCache(4, 16), [], 1)
    fetch = DiskFetch(1, wanted, 0.0, [])
    for counts in ((7, 5, 9), (0, 5, 9), (4, 4, 4)):  # Of a look-up, of what was read, and so on.
        *early, last = order
        for rank in early:
            assert fetch.heard(rank, counts[rank], 3) is None
            with pytest.raises(UnfitAnswer, match=f"rank {rank} reported twice"):
                fetch.heard(rank, 0, 3)
        assert fetch.heard(last, counts[last], 3) == min(counts)
