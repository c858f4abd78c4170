"""The KV cache's books: blocks, what is in them, and the copies that a worker has to make.

A free block keeps its contents until it is reused, and can be found by its key until then; after
that in the host tier, if there is one.  A key is published only when the step that computed the
block is settled.

Copies are one list in order: the worker carries it out, in that order, before a step computes, so a
block may be evicted to the host and filled again within the same plan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from penstock.protocol.to_worker import Copy, Save
from penstock_engine.kv.keys import stored_name
from penstock_engine.kv.pool import BlockPool, BrokenState
from penstock_engine.kv.retention import KVSession, Retention

HOST, STORED = 1, 2
"""Bits that say through which tiers the contents of a block have come: the host tier; disk, a store
or another engine core."""

FINDABLE = 4
"""A bit that is added to the owner classes of the pool, so that both are one number."""


@dataclass(frozen=True)
class Match:
    """The leading blocks of a sequence that are there already.

    blocks: how many.  taken: how many free device blocks it costs to have them.
    """

    blocks: int
    taken: int


class KVCache:
    """pool: device blocks.  host_blocks: of the host tier, 0 for none.

    num_kept: free device blocks whose contents can be found.  retention: which of them are kept for
    sessions.
    """

    __slots__ = (
        "_block_of",
        "_copies",
        "_fetching",
        "_key_of",
        "_saves",
        "block_size",
        "findable",
        "host",
        "num_kept",
        "num_swapped_in",
        "num_swapped_out",
        "origins",
        "pool",
        "retention",
        "saves_to_disk",
    )

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        host_blocks: int = 0,
        session_share: float = 0.0,
    ) -> None:
        """session_share: of the device blocks, that sessions may keep."""
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.retention = Retention(self.pool, int(session_share * num_blocks))
        self.host = HostTier(host_blocks) if host_blocks else None
        self.num_swapped_in = self.num_swapped_out = 0
        self.num_kept = 0
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._copies: list[Copy] = []
        self._saves: list[Save] = []
        self._fetching: dict[int, list[int]] = {}
        """Blocks that are being filled from disk, by the number of their fetch."""
        self.saves_to_disk = False
        """Whether the worker keeps what is published on disk, too."""
        self.findable = bytearray(num_blocks)
        """FINDABLE for each block whose contents can be found, else 0."""
        self.origins = bytearray(num_blocks)
        """HOST and STORED for each block, as far as its contents can be found."""

    @property
    def num_host_blocks(self) -> int:
        """Blocks of the host tier; 0: there is none."""
        return 0 if self.host is None else self.host.num_blocks

    def match(self, keys: Iterable[bytes]) -> Match:
        """How far `keys`, the keys of a sequence's blocks in order, are here without a gap."""
        found = taken = 0
        for key in keys:
            block = self._block_of.get(key)
            if block is not None:
                taken += self.pool.num_owners(block) == 0
            elif self.host is not None and key in self.host:
                taken += 1
            else:
                break
            found += 1
        return Match(found, taken)

    def has(self, key: bytes) -> bool:
        """Whether its contents are here."""
        return key in self._block_of or (self.host is not None and key in self.host)

    def claim(self, keys: Sequence[bytes]) -> list[int]:
        """One more owner for each of these blocks; all of them were matched, and there is room.

        Contents of the host tier are copied to blocks of the device.
        """
        # Those on the device first: a block that is taken for the others could be one of them.
        held = {key: self._hold(key) for key in keys if key in self._block_of}
        absent = [key for key in keys if key not in held]
        if absent:
            held |= self._swap_in(absent)
        return [held[key] for key in keys]

    def _hold(self, key: bytes) -> int:
        block = self._block_of[key]
        self.num_kept -= self.pool.num_owners(block) == 0
        self.pool.share(block)
        return block

    def _swap_in(self, keys: list[bytes]) -> dict[bytes, int]:
        """Blocks for contents of the host tier, all of which stay there."""
        if self.host is None:
            raise ValueError("there is no host tier to swap in from")
        # Read first, so that they are the last whose place what is evicted meanwhile could take.
        sources = [self.host.read(key) for key in keys]
        blocks = self._take(len(keys), frozenset(keys))
        for key, source, block in zip(keys, sources, blocks, strict=True):
            self._copies.append(Copy("in", source, block))
            self._publish(block, key, self.host.origins[source] | HOST)
        self.num_swapped_in += len(keys)
        return dict(zip(keys, blocks, strict=True))

    def take(self, count: int) -> list[int]:
        """`count` blocks whose contents mean nothing any more. Raises OutOfBlocks."""
        return self._take(count, frozenset())

    def _take(self, count: int, protected: frozenset[bytes]) -> list[int]:
        blocks = self.pool.take(count)
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is None:
                continue
            del self._block_of[key]
            self.num_kept -= 1
            self.findable[block] = 0
            self.retention.lost(block)
            target = None if self.host is None else self.host.store(key, protected)
            if self.host is not None and target is not None:
                self.host.origins[target] = self.origins[block]
                self._copies.append(Copy("out", block, target))
                self.num_swapped_out += 1
        return blocks

    def copy(self, source: int) -> int:
        """A new block with the contents of another: what a fork writes to. Raises OutOfBlocks."""
        (block,) = self.take(1)
        self.copy_to(source, block)
        return block

    def copy_to(self, source: int, block: int) -> None:
        """Copies the contents of a block to one that was taken before."""
        self._copies.append(Copy("device", source, block))
        self.origins[block] = self.origins[source]

    def release(self, blocks: Sequence[int], session: KVSession | None = None) -> None:
        """Gives blocks back that a sequence has owned. blocks: in token order.  session: that may
        come back for them."""
        if session is not None:
            self.retention.keep(session, [block for block in blocks if block in self._key_of])
        self.num_kept += self.pool.give_back(blocks, self._key_of)

    def publish(
        self, blocks: Sequence[int], keys: Sequence[bytes], *, lasting: bool = True
    ) -> None:
        """Makes blocks that were computed in full, and that a sequence holds, known by their keys.
        lasting: whether others may want them later, so that they are kept on disk, too."""
        for block, key in zip(blocks, keys, strict=True):
            if key not in self._block_of and block not in self._key_of:
                self._publish(block, key)
                if self.saves_to_disk and lasting:
                    self._saves.append(Save(stored_name(key), block))

    def _publish(self, block: int, key: bytes, origin: int = 0) -> None:
        self._block_of[key] = block
        self._key_of[block] = key
        self.findable[block] = FINDABLE
        self.origins[block] = origin

    def forget_private(self, blocks: Sequence[int]) -> None:
        """The contents of those blocks that have only one owner can't be found again."""
        for block in blocks:
            key = self._key_of.get(block) if self.pool.num_owners(block) == 1 else None
            if key is not None:
                del self._key_of[block]
                del self._block_of[key]
                self.findable[block] = 0
                self.retention.lost(block)
                if self.host is not None:
                    self.host.drop(key)

    def forget_all(self) -> None:
        """Makes nothing that is here findable any more. Blocks in use stay allocated."""
        for block in self._key_of:
            self.findable[block] = 0
            self.retention.lost(block)
        self._key_of.clear()
        self._block_of.clear()
        self.num_kept = 0
        if self.host is not None:
            self.host = HostTier(self.host.num_blocks)

    def origin_of(self, blocks: Iterable[int]) -> int:
        """Bits of all tiers through which any of these blocks has come."""
        found = 0
        for block in blocks:
            found |= self.origins[block]
        return found

    def save_again(self, blocks: Iterable[int]) -> None:
        """Has the worker keep on disk, once more, those of these blocks that are still
        published."""
        if self.saves_to_disk:
            found = ((self._key_of.get(block), block) for block in blocks)
            self._saves += [
                Save(stored_name(key), block) for key, block in found if key is not None
            ]

    def take_copies(self) -> list[Copy]:
        """Copies decided since the last call, in the order in which they must be made."""
        copies, self._copies = self._copies, []
        return copies

    def take_saves(self) -> list[Save]:
        """Blocks to be kept on disk, before any copies decided since the last call are made."""
        saves, self._saves = self._saves, []
        return saves

    @property
    def num_fetching(self) -> int:
        """Blocks that are being filled from disk."""
        return sum(map(len, self._fetching.values()))

    def fetching(self) -> dict[int, int]:
        """How many blocks belong to each fetch, by its number."""
        return {number: len(blocks) for number, blocks in self._fetching.items()}

    def begin_fetch(self, number: int, count: int) -> list[int]:
        """Blocks that belong to a fetch until `end_fetch`. Raises OutOfBlocks."""
        blocks = self._fetching[number] = self.take(count)
        return blocks

    def end_fetch(self, number: int, keys: Sequence[bytes]) -> None:
        """The fetch's leading blocks have the contents of these keys, and can be found. All its
        blocks are free."""
        blocks = self._fetching.pop(number)
        for block, key in zip(blocks, keys, strict=False):
            if key not in self._block_of:
                self._publish(block, key, STORED)
        self.release(blocks)

    def key_of(self, block: int) -> bytes | None:
        """The key by which a device block's contents can be found; None: they can't be."""
        return self._key_of.get(block)

    @property
    def num_cached(self) -> int:
        """Device blocks whose contents can be found."""
        return len(self._block_of)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Proves the books. Raises BrokenState. Linear in the pool's size."""
        self.pool.check([*tables, *self._fetching.values()])
        if {block: key for key, block in self._block_of.items()} != self._key_of:
            raise BrokenState("the prefix index and the blocks' keys disagree")
        if sum(self.pool.num_owners(block) == 0 for block in self._key_of) != self.num_kept:
            raise BrokenState(f"{self.num_kept} free KV blocks are counted as kept; it is not so")
        marked = self.findable.count(FINDABLE) == len(self._key_of)
        if not (marked and all(map(self.findable.__getitem__, self._key_of))):
            raise BrokenState("the blocks that are marked as findable aren't those with keys")
        self.retention.check(self._key_of)
        if self.host is not None and not self.host.balances():
            raise BrokenState("a block of the host tier is lost, or held twice")


class HostTier:
    """Which key lies in which host block; the least recently stored or read one makes room.

    The memory is the worker's: what is stored here is gone when it dies.
    """

    __slots__ = ("_blocks", "_free", "num_blocks", "origins")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(num_blocks - 1, -1, -1))
        self.origins = bytearray(num_blocks)
        """HOST and STORED for each of its blocks, like KVCache.origins."""

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
