"""A CPU's KV cache as blocks that are kept elsewhere. All copies are made at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from penstock_kernels.cpu.kept import BlockGatherer
from penstock_worker.stores.cache import CopiedBlock, check_blocks
from penstock_worker.stores.contents import Contents

WAITING_BYTES = 64 * 2**20
"""Bytes of copies that may wait to be written in the background."""

MAX_SPARE = 16
"""Copies' memory that is kept for the next ones: fresh memory costs more than the copy."""


class HostCopy:
    """A CopiedBlock. `release` gives its memory back to `spare`."""

    def __init__(self, data: np.ndarray, spare: deque[np.ndarray]) -> None:
        self._data = data
        self._spare = spare

    def contents(self) -> memoryview:
        return self._data.data

    def release(self) -> None:
        self._spare.append(self._data)


class HostCache:
    """A StoredCache. It is its own Filling: a block is filled as soon as it is written."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        """`parts`: [blocks, bytes] uint8 each, views of the KV cache; row b of all of them together
        is block b."""
        self._parts = list(parts)
        self._gatherer = _gatherer(self._parts)
        self._spare: deque[np.ndarray] = deque(maxlen=MAX_SPARE)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(part.shape[1] for part in self._parts)

    @property
    def waiting_bytes(self) -> int:
        return WAITING_BYTES

    def reserve(self, copies: int) -> None:
        """Memory is taken as it is needed."""

    def copy_out(self, blocks: Sequence[int]) -> list[CopiedBlock]:
        check_blocks(blocks, len(self._parts[0]))
        return [self._copied(block) for block in blocks]

    def overwriting(self, blocks: Iterable[int]) -> None:
        """Copies have been made."""

    def fill(self, blocks: Sequence[int]) -> HostCache:
        check_blocks(blocks, len(self._parts[0]))
        return self

    def settle(self) -> None:
        """Copies have been made."""

    def await_room(self) -> None:
        """There always is."""

    def write(self, block: int, data: Contents) -> None:
        check_blocks((block,), len(self._parts[0]))
        view, at = np.frombuffer(data, dtype=np.uint8), 0
        for part in self._parts:
            part[block] = view[at : at + part.shape[1]]
            at += part.shape[1]

    def close(self) -> None:
        """Does nothing: the contents are in the cache already."""

    def wait(self) -> None:
        """Does nothing: the contents are in the cache already."""

    def _copied(self, block: int) -> HostCopy:
        try:
            data = self._spare.pop()
        except IndexError:
            data = np.empty(sum(self.widths), dtype=np.uint8)
        if self._gatherer is not None:
            self._gatherer.gather(block, data)
        else:
            np.concatenate([part[block] for part in self._parts], out=data)
        return HostCopy(data, self._spare)


def _gatherer(parts: list[np.ndarray]) -> BlockGatherer | None:
    """Returns the C++ gatherer; None if the CPU kernels aren't there, or the arrays' rows lie
    otherwise."""
    try:
        return BlockGatherer(parts)
    except (ImportError, ValueError):
        return None
