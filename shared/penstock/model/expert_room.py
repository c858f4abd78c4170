"""What of a card is for routed experts, and when one is copied there: the worker and estimates go
by the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KV_SHARE = 0.2
"""The KV cache's share of what the card may use, or as much as the longest sequence takes."""
STEP_SHARE = 0.05
"""What steps take, as a share of what the card may use. The worker measures them once it has
loaded, and what they leave is the cache's as well."""
UNPACKED_BYTES = 4
"""Of a weight that is copied to the card, while its level becomes a byte, with its scales."""
BUFFER_BYTES = 32 << 20
"""Bytes of experts that are copied at a time, if that is one expert or more."""
MOST_PAIRS = 2048
"""Pairs of a row and a copied expert that the card computes at a time, so that a step's memory
doesn't depend on which experts its rows have."""
LINK_BYTES = 20e9
"""Assumed where it can't be measured: bytes per second from the host's memory to a card, through
pinned memory."""
COPY_PASSES = 3
"""How often a copied byte passes the host's memory: it is read and written as pinned memory is
filled, and read by the bus."""
THREAD_OPERATIONS = 0.15e12
"""Assumed: operations per second of a thread's products of bytes."""
FEWEST_ROWS = 8
"""Rows below which an expert is never copied: what else its copy costs isn't reckoned."""


@dataclass(frozen=True)
class CardRoom:
    """What a card's memory is for, bytes, before it holds anything of the model."""

    usable: int
    kv: int
    """For the KV cache, at least."""
    steps: int
    rest: int
    """Tensors that aren't routed experts' matrices."""
    copies: int = 0
    """For experts that are copied to the card for the rows of a step."""
    beside: int = 0
    """For drafts, adapters, and what encodes media."""

    @property
    def experts(self) -> int:
        """What is left for routed experts."""
        taken = self.kv + self.steps + self.rest + self.copies + self.beside
        return max(0, self.usable - taken)

    def __str__(self) -> str:
        parts = {"KV cache": self.kv, "steps": self.steps, "other weights": self.rest}
        parts |= {"copies of experts": self.copies, "drafts, adapters and media": self.beside}
        named = ", ".join(f"{name} {_mib(size)}" for name, size in parts.items())
        return f"{_mib(self.usable)}: {named}, routed experts {_mib(self.experts)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def layers_on_host(sizes: Sequence[int], room: int) -> int:
    """Returns of how many layers, from the first one on, the experts must lie in the host's memory
    for those of the others to fit the room. `sizes`: bytes of each layer's experts."""
    for count in range(len(sizes), 0, -1):
        room -= sizes[count - 1]
        if room < 0:
            return count
    return 0


def experts_together(nbytes: int, count: int) -> int:
    """Returns how many of a layer's `count` experts, of so many bytes each, are copied at a
    time."""
    return max(1, min(count, BUFFER_BYTES // nbytes))


def copies_of_experts(nbytes: int, weights: int, count: int) -> int:
    """Returns the bytes that copies of a layer's `count` experts take on the card: two buffers, and
    what the experts of one become there. `nbytes`, `weights`: of one."""
    return experts_together(nbytes, count) * (2 * nbytes + UNPACKED_BYTES * weights)


def rows_worth_a_copy(nbytes: int, weights: int, threads: int, link: float = LINK_BYTES) -> int:
    """Returns from how many rows on an expert of so many bytes and weights is copied, with `link`
    bytes per second, sooner than `threads` threads compute its rows."""
    seconds_of_row = 2 * weights / (threads * THREAD_OPERATIONS)
    return max(FEWEST_ROWS, round(nbytes / link / seconds_of_row))
