"""The first of many engine cores is dialled alone: once it has sent the tokenizer, some megabytes,
the others needn't."""

from __future__ import annotations

import asyncio
from contextlib import suppress

MANY = 8
"""Engine cores that are dialled at once, at most, while no tokenizer is there."""

FIRST_ALONE = 0.5
"""Seconds that the others wait for it, at most: it may be the one that isn't there."""


class FirstAlone:
    """connected: set once an engine core was taken in."""

    def __init__(self, connected: asyncio.Event) -> None:
        self._connected = connected

    async def may_dial(self, index: int, count: int, *, has_text: bool) -> None:
        """Waits until number `index` of so many may be dialled."""
        if index and count > MANY and not has_text:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._connected.wait(), FIRST_ALONE)
