"""The host tier: blocks of a bounded pool beside the device's, for contents that were evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container


class HostTier:
    """Which key lies in which host block; the least recently stored or read one makes room.

    The memory is the worker's: what is stored here is gone when it dies.
    """

    __slots__ = ("_blocks", "_free", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_used(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def store(self, key: bytes, protected: Container[bytes] = ()) -> int | None:
        """The host block that the contents are to be copied to.

        None: they are there already, or only `protected` contents could make room for them.
        """
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return None
        if self._free:
            block = self._free.pop()
        elif next(iter(self._blocks)) in protected:
            return None
        else:
            block = self._blocks.popitem(last=False)[1]
        self._blocks[key] = block
        return block

    def read(self, key: bytes) -> int:
        """The host block that holds the contents. Raises KeyError."""
        self._blocks.move_to_end(key)
        return self._blocks[key]

    def drop(self, key: bytes) -> None:
        """Forgets a key, if it is here."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._free.append(block)

    def balances(self) -> bool:
        """Whether each block is free or holds one key."""
        return sorted([*self._blocks.values(), *self._free]) == list(range(self.num_blocks))
