"""What a tier knows of the KV cache: copies of blocks that leave it, and blocks that are filled.

One implementation for a CPU's memory (host_cache), where every copy is made at once, and one for a
device (device.stored_cache), whose copies run concurrently with its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock_worker.batch.slots import PlanError
from penstock_worker.stores.contents import Contents


class CopiedBlock(Protocol):
    """A block's contents outside of the cache, which may still be on their way."""

    def contents(self) -> memoryview:
        """Waits until they are there. Returns a view of bytes, of memory that is used for another
        block after `release`. From any thread. Raises the device's error if there was one."""

    def release(self) -> None:
        """Called once, from any thread, when the contents aren't used any more."""


class Filling(Protocol):
    """Blocks that are being filled for one fetch. From the thread that reads."""

    def await_room(self) -> None:
        """Waits until `write` needs not. Raises the device's error if there was one."""

    def write(self, block: int, data: Contents) -> None:
        """Fills a block with what was copied out of one, at once or by `close`. Raises PlanError if
        it doesn't exist."""

    def close(self) -> None:
        """Begins to move what was written and isn't in the cache yet."""

    def wait(self) -> None:
        """Waits until all that is on its way is in the cache, so that any step may use it. Raises
        the device's error if there was one."""


class StoredCache(Protocol):
    """The KV cache as blocks of bytes. Of methods that queue copies, `copy_out`, `overwriting`,
    `fill` and `settle` are called from the thread that computes.

    A block's bytes are the same ones for every implementation, but what is computed isn't: a
    layout's name keeps backends apart (see StoredLayout).
    """

    @property
    def widths(self) -> tuple[int, ...]:
        """Bytes of a block in each of the parts that its contents consist of, in their order."""

    @property
    def waiting_bytes(self) -> int:
        """Returns how many bytes of copies may wait to be written, as many as are useful in the
        background."""

    def reserve(self, copies: int) -> None:
        """Takes the memory for so many copies at a time, before the first one. Raises
        StartupError."""

    def copy_out(self, blocks: Sequence[int]) -> list[CopiedBlock]:
        """Copies blocks as they are after all that is queued, counted from the first; fewer if
        there is no room for more copies. Raises PlanError for a block that doesn't exist."""

    def overwriting(self, blocks: Iterable[int]) -> None:
        """Has the work that is queued next come after all copies of these blocks, as it may write
        to them."""

    def fill(self, blocks: Sequence[int]) -> Filling:
        """Begins to fill these blocks, after all that is queued. Until `Filling.wait` returns,
        nothing else may use them."""

    def settle(self) -> None:
        """Has the work that is queued next come after all copies, as it may use any block."""


def check_blocks(blocks: Iterable[int], count: int) -> None:
    """Raises PlanError for a block that isn't one of so many."""
    for block in blocks:
        if not 0 <= block < count:
            raise PlanError(f"device block {block} is not in [0, {count})")
