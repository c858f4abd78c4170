"""What the KV pool of a modelled engine core holds: prefixes, as long ones, not block by block."""

from __future__ import annotations

from collections import OrderedDict

from penstock_planning.cells.asks import Ask

Key = tuple[str, str | int]


class HeldPrefixes:
    """KV blocks of one engine core.  Blocks of requests that run are pinned; of the others, what
    was not used for longest goes first, from its end.

    pinned: blocks of running requests.  blocks: of all.  size: tokens of a block.
    """

    __slots__ = ("_held", "_kept", "blocks", "pinned", "size")

    def __init__(self, blocks: int, size: int) -> None:
        self.blocks, self.size = blocks, size
        self.pinned = self._kept = 0
        self._held: OrderedDict[Key, int] = OrderedDict()
        """Blocks of each prefix, those that were used last at the end."""

    def found(self, ask: Ask) -> int:
        """Prompt tokens whose KV is there; they count as used."""
        request, size = ask.request, self.size
        most = (ask.length - 1) // size
        # A prefix is used last, so that it goes after what it is the beginning of.
        found = self._use(("session", request.session)) if request.session else 0
        if request.prefix_group is not None and request.prefix_tokens:
            whole = min(request.prefix_tokens, request.num_prompt) // size
            shared = min(self._use(("shared", request.prefix_group)), whole)
            found = shared + (found if shared == whole else 0)
        return min(found, most) * size

    def room_for(self, blocks: int) -> bool:
        """Whether so many more can be pinned."""
        return self.pinned + blocks <= self.blocks

    def pin(self, blocks: int) -> None:
        """Blocks for a request that begins; what was kept makes room."""
        self.pinned += blocks
        self._shrink()

    def unpin(self, blocks: int) -> None:
        """Blocks that a request doesn't need for itself any more."""
        self.pinned -= blocks
        self._shrink()

    def keep(self, ask: Ask, tokens: int) -> int:
        """So many tokens of the request have been computed: they can be found from now on. Returns
        the blocks that are held for that, and so need not be pinned any more."""
        request, size = ask.request, self.size
        whole, shared, before = tokens // size, 0, self._kept
        if request.prefix_group is not None:
            shared = min(request.prefix_tokens // size, whole)
        own = ("session", request.session) if request.session else ("alone", ask.number)
        self._set(own, whole - shared)
        if request.prefix_group is not None:
            self._set(("shared", request.prefix_group), shared)
        return self._kept - before

    def _use(self, key: Key) -> int:
        held = self._held.get(key, 0)
        if held:
            self._held.move_to_end(key)
        return held

    def _set(self, key: Key, blocks: int) -> None:
        before = self._held.get(key, 0)
        if blocks > before:
            self._held[key] = blocks
            self._kept += blocks - before
        if blocks:
            self._held.move_to_end(key)

    def _shrink(self) -> None:
        """What is kept besides what is pinned has room, or goes."""
        over = self._kept + self.pinned - self.blocks
        while over > 0 and self._held:
            key, blocks = next(iter(self._held.items()))
            gone = min(blocks, over)
            over -= gone
            self._kept -= gone
            if gone == blocks:
                del self._held[key]
            else:
                self._held[key] = blocks - gone
