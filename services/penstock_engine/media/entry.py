"""The engine core's record of one item of media."""

from __future__ import annotations

import enum

from penstock.protocol.media import MEDIA_OVERHEAD, MediaItem
from penstock_engine.request.request import Request, Sequence


class MediaStage(enum.Enum):
    """How far an item is on its way to the workers."""

    ABSENT = "absent"
    ASKED = "asked for"
    """A front end is to send it, or the next part of it."""
    LOADING = "loading"
    """Workers have been sent it, or a part of it, and have not all answered."""
    LOADED = "loaded"
    ENCODING = "being encoded"
    """A plan has it begun, and none yet done."""
    ENCODED = "encoded"
    """The latest plan at least has it encoded."""


class MediaEntry:
    """The engine core's record of one item, under its name between engine core and workers."""

    __slots__ = (
        "asked_at",
        "awaited",
        "by_file",
        "chunks",
        "done",
        "failure",
        "held",
        "holders",
        "item",
        "pins",
        "received",
        "source",
        "stage",
        "work",
    )

    def __init__(self, item: MediaItem) -> None:
        self.item = item
        self.stage = MediaStage.ABSENT
        self.holders: dict[Sequence, None] = {}
        """The sequences that will need the item: they wait for it, are about to start, or run."""
        self.source: Request | None = None  # whose front end is asked for it
        self.asked_at = 0.0  # when it was
        self.received = 0  # bytes that were passed on; all of them at once where it is a file
        self.by_file = False  # it was passed on as a file
        self.chunks = False  # a worker can't open files of ours
        self.awaited: set[int] = set()  # ranks that have not answered yet
        self.failure = ""  # what one of the ranks said against it, or ""
        self.held = False  # its rows are counted: encoded, or room was made for them
        self.work = 0  # see MediaReady
        self.done = 0  # of that, in plans so far, while it is being encoded
        self.pins: dict[Sequence, None] = {}
        """The running sequences that still need the item's rows, so that these must stay."""

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def rows(self) -> int:
        return self.item.rows

    @property
    def cost(self) -> int:
        """Size of the prepared item, bytes."""
        return cost_of(self.item)

    @property
    def is_there(self) -> bool:
        """Whether a step may have it encoded, or has."""
        return self.stage in (MediaStage.LOADED, MediaStage.ENCODING, MediaStage.ENCODED)


def cost_of(item: MediaItem) -> int:
    """Bytes of a prepared item that count."""
    return item.size + MEDIA_OVERHEAD
