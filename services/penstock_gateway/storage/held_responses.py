"""Responses that a gateway holds in its memory, where no database keeps them: OpenAI's API stores
by default, and its clients rely on it within a tool loop."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from penstock_gateway.storage.chains import MAX_LINKS, BrokenChain, UnfitChain

SECONDS = 3600
"""How long a response is held, from when it ended or was last gone on from."""
MOST = 512
"""Responses of a tenant."""
SHARE = 4
"""A tenant has at most one part in so many of the bytes."""
OVERHEAD = 1024
"""Bytes that a response takes beside its text."""
LOST = (
    "; this gateway holds responses in memory, for an hour and no longer than it runs, and of a "
    "tenant the latest (--held-responses-mib; --stored-response-hours keeps them on disk)"
)
"""What is said of one that isn't there."""
_Key = tuple[str, str]


@dataclass(slots=True)
class _Held:
    previous_id: str | None
    items: str
    response: str
    expires: float

    @property
    def size(self) -> int:
        return OVERHEAD + len(self.items) + len(self.response)


class HeldResponses:
    """Whoever asks sees the responses of one owner only; see ResponseRecords. most_bytes: of all
    of them together, after which the oldest make way."""

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._all: OrderedDict[_Key, _Held] = OrderedDict()
        """The latest last."""
        self._of_owner: dict[str, OrderedDict[str, None]] = {}
        self._bytes: Counter[str] = Counter()

    @property
    def bytes(self) -> int:
        """Bytes of all that is held."""
        return self._bytes.total()

    def __len__(self) -> int:
        return len(self._all)

    async def save(
        self, owner: str, id: str, previous_id: str | None, items: str, response: str
    ) -> None:
        """Holds a response in place of the one of that id. One that is larger than all of an
        owner's may be isn't held."""
        self._drop(owner, id)
        held = _Held(previous_id, items, response, self._clock() + SECONDS)
        share = self._most_bytes // SHARE
        if held.size > share:
            return
        self._all[owner, id] = held
        theirs = self._of_owner.setdefault(owner, OrderedDict())
        theirs[id] = None
        self._bytes[owner] += held.size
        while len(theirs) > MOST or self._bytes[owner] > share:
            self._drop(owner, next(iter(theirs)))
        while self.bytes > self._most_bytes or self._is_over():
            self._drop(*next(iter(self._all)))

    async def find(self, owner: str, id: str) -> str | None:
        """The response, as it was answered."""
        held = self._living(owner, id)
        return None if held is None else held.response

    async def conversation(
        self, owner: str, id: str, *, most: int, own_id: str
    ) -> list[tuple[str, str]]:
        """Returns the chain that ends with a response, like ResponseRecords.conversation."""
        links: list[tuple[str, str]] = []
        ids: list[str] = []
        wanted: str | None = id
        while wanted is not None:
            if wanted == own_id:
                raise UnfitChain(f"holds {own_id[:100]} already, the id of this response")
            held = self._living(owner, wanted)
            if held is None:
                raise BrokenChain(wanted)
            links.append((held.items, held.response))
            ids.append(wanted)
            most -= len(held.items) + len(held.response)
            if len(links) > MAX_LINKS:
                raise UnfitChain(f"has more than {MAX_LINKS} responses, the maximum")
            if most < 0:
                raise UnfitChain("has more bytes than a request may have")
            wanted = held.previous_id
        for each in reversed(ids):
            self._all[owner, each].expires = self._clock() + SECONDS
            self._all.move_to_end((owner, each))
            self._of_owner[owner].move_to_end(each)
        return links[::-1]

    async def remove(self, owner: str, id: str) -> bool:
        """False: there was none."""
        was_there = self._living(owner, id) is not None
        self._drop(owner, id)
        return was_there

    def _living(self, owner: str, id: str) -> _Held | None:
        held = self._all.get((owner, id))
        if held is not None and held.expires <= self._clock():
            self._drop(owner, id)
            return None
        return held

    def _is_over(self) -> bool:
        """Whether the oldest has expired."""
        oldest = next(iter(self._all.values()), None)
        return oldest is not None and oldest.expires <= self._clock()

    def _drop(self, owner: str, id: str) -> None:
        held = self._all.pop((owner, id), None)
        if held is None:
            return
        self._bytes[owner] -= held.size
        theirs = self._of_owner[owner]
        del theirs[id]
        if not theirs:
            del self._of_owner[owner], self._bytes[owner]
