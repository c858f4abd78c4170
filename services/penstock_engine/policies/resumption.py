"""What becomes of a preempted sequence's KV: kept while there is room, or computed again."""

from __future__ import annotations

from penstock.config import PreemptionMode
from penstock_engine.request import Sequence


class Resumption:
    """Weighs computing tokens again against copying their blocks to the host and back.

    Keeping costs nothing until a block is needed for something else: only then it is copied, if
    there is a host tier, and else lost.  The price of a token is measured on steps that compute
    many (`observe`), that of a copied block by the worker when it starts.
    """

    MANY_TOKENS = 64
    WEIGHT = 0.2
    """Of the newest measurement in the moving average."""

    def __init__(self, mode: PreemptionMode) -> None:
        self._mode = mode
        self._token_seconds: float | None = None
        self._copy_seconds = 0.0
        self._has_host = False

    def attach(self, host_blocks: int, copy_seconds: float) -> None:
        """A worker is ready. copy_seconds: for a block, out and in again."""
        self._has_host = host_blocks > 0
        self._copy_seconds = copy_seconds
        self._token_seconds = None

    def observe(self, tokens: int, seconds: float) -> None:
        """A step was settled."""
        if tokens < self.MANY_TOKENS or seconds <= 0.0:
            return
        each, known = seconds / tokens, self._token_seconds
        self._token_seconds = each if known is None else known + self.WEIGHT * (each - known)

    def recomputes(self, victim: Sequence) -> bool:
        """Whether the blocks that only the victim holds are to be forgotten."""
        if self._mode != "auto":
            return self._mode == "recompute"
        if not self._has_host or self._token_seconds is None or victim.table is None:
            return False
        copying = len(victim.table.blocks) * self._copy_seconds
        return copying > victim.num_computed * self._token_seconds
