"""One signature for all receipts of a batch: a Merkle tree over their statements (RFC 6962, 2.1).

Each receipt has its index and the sibling digests on its path to the root, so that a single line of
a batch's output proves that it is one of so many, and that none was exchanged since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def leaf_digest(statement: str) -> bytes:
    """The digest of a receipt's statement. Leaves and nodes are hashed as different things, so
    that none can stand for the other."""
    return hashlib.sha256(b"\0" + statement.encode()).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


class ReceiptTree:
    """leaves: at least one."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not leaves:
            raise ValueError("a tree needs leaves")
        self._levels = [list(leaves)]
        while len(level := self._levels[-1]) > 1:
            pairs = [_node(*level[at : at + 2]) for at in range(0, len(level) - 1, 2)]
            # A node without a sibling moves up as it is.
            self._levels.append(pairs + level[2 * len(pairs) :])

    @property
    def size(self) -> int:
        return len(self._levels[0])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def path(self, index: int) -> list[bytes]:
        """Returns the sibling digests on the leaf's path to the root, leaf first."""
        found = []
        for level in self._levels[:-1]:
            if (sibling := index ^ 1) < len(level):
                found.append(level[sibling])
            index >>= 1
        return found


def root_from(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """The root that a leaf leads to from its place; None: a tree of that size has no such path."""
    last, rest, found = size - 1, list(path)[::-1], leaf
    if not 0 <= index <= last:
        return None
    while last:
        if index < last or index & 1:
            if not rest:
                return None
            sibling = rest.pop()
            found = _node(sibling, found) if index & 1 else _node(found, sibling)
        index, last = index >> 1, last >> 1
    return None if rest else found
