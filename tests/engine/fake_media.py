"""What a worker has of media: nothing is encoded, and every rule of the protocol is checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.protocol.from_worker import MediaFailed, MediaReady, MediaTaken
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.protocol.to_worker import Plan
from penstock.protocol.worker_resources import DropMedia, LoadMedia, LoadMediaChunk

MediaMessage = LoadMedia | LoadMediaChunk | DropMedia
MediaAnswer = MediaTaken | MediaReady | MediaFailed

Whole = Callable[[int, int], int]
"""Draws a number."""

Mark = int | tuple[str, int]
"""What a prompt has at a place: a token, or an item's digest and a row of it."""


def picture(number: int, rows: int = 4, size: int = 100_000) -> MediaItem:
    """One of many, all different."""
    digest = hashlib.sha256(f"{number} {rows} {size}".encode()).hexdigest()
    name = hashlib.sha256(digest.encode()).hexdigest()
    return MediaItem(name, "image", rows, size, digest, (1, 1, rows))


def shown(*placed: tuple[MediaItem, int]) -> Media:
    """Media of items that begin at these tokens, each in one span."""
    items = tuple(dict.fromkeys(item for item, _ in placed))
    spans = [MediaSpan(items.index(item), offset, item.rows) for item, offset in placed]
    return Media(items, tuple(spans))


def drawn_media(whole: Whole, length: int, *, joined: bool = False) -> Media | None:
    """A few of a few pictures, in one span or in several, where the prompt has room for them.
    joined: whether several spans see one another."""
    items: dict[MediaItem, int] = {}
    spans: list[MediaSpan] = []
    at = whole(0, 3)
    for _ in range(whole(1, 4)):
        number = whole(0, 5)
        item = picture(number, 1 + number, 300_000)
        first, end = 0, item.rows
        while first < end:
            tokens = whole(1, end - first)
            if at + tokens > length:
                break
            spans.append(MediaSpan(items.setdefault(item, len(items)), at, tokens, first))
            first, at = first + tokens, at + tokens + whole(0, 1)
        at += whole(0, 3)
    return Media(tuple(items), tuple(spans), joined and len(spans) > 1) if spans else None


def marks(prompt: list[int], media: Media | None) -> list[Mark]:
    """The prompt, and in place of each placeholder what it stands for. What stands from the first
    joined span to the last depends on all of it."""
    found: list[Mark] = list(prompt)
    for span in () if media is None else media.spans:
        digest = media.items[span.item].digest
        found[span.offset : span.end] = [(digest, span.first + at) for at in range(span.tokens)]
    if media is not None and media.joined:
        first, last = media.spans[0].offset, media.spans[-1].end
        whole = hashlib.sha256(repr(found[first:last]).encode()).hexdigest()
        found[first:last] = [(whole, at) for at in range(last - first)]
    return found


@dataclass
class FakeMedia:
    """capacity: rows. bad: digests of items that the encoder can't take. size: bytes of prepared
    items."""

    capacity: int
    whole_spans: bool = False
    reads_files: bool = True
    bad: set[str] = field(default_factory=set)
    size: int = 2**40
    coming: dict[str, tuple[LoadMedia, int]] = field(default_factory=dict)
    """Items by name, and how many bytes of each have come."""
    loaded: dict[str, LoadMedia] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    encoded: Counter[str] = field(default_factory=Counter)
    """How often each item was encoded, by name."""
    due: list[MediaAnswer] = field(default_factory=list)
    """Answers that are to be given, in order."""

    work: int = 0
    """The work of each row: see MediaReady."""
    begun: tuple[LoadMedia, int] | None = None
    """The item that is encoded in parts, and how far it is."""
    num_parts: int = 0
    shares: list[int] = field(default_factory=list)
    """Rows of each item that the latest step encoded; of one in parts, in proportion."""

    failed: set[str] = field(default_factory=set)
    """Items that could not be encoded; other ranks have them encoded, so they are dropped too."""

    def fails(self, name: str) -> None:
        """It could not encode the item."""
        del self.rows[name]
        self.failed.add(name)

    def hears(self, message: MediaMessage, frames: tuple[bytes, ...]) -> None:
        match message:
            case LoadMedia(name=name, path=path):
                assert name not in self.coming
                assert name not in self.loaded
                if path:
                    self._come(name, message)
                else:
                    self.coming[name] = (message, 0)
                held = [item.size for item, _ in self.coming.values()]
                held += [item.size for item in self.loaded.values()]
                assert sum(held) <= self.size, "more bytes than there is room for"
            case LoadMediaChunk(name, offset):
                load, size = self.coming[name]
                assert offset == size, "chunks come in order"
                size += len(frames[0])
                self.coming[name] = (load, size)
                if size == load.size:
                    self._come(name, load)
                else:
                    assert len(frames[0]) == 1_048_576
                    self.due.append(MediaTaken(name, size))
            case DropMedia(name):
                answered = all(answer.name != name for answer in self.due)
                assert answered, "an item is dropped that is being loaded"
                self.coming.pop(name, None)
                self.loaded.pop(name, None)

    def _come(self, name: str, load: LoadMedia) -> None:
        self.coming.pop(name, None)
        if load.path and not self.reads_files:
            self.due.append(MediaFailed(name, "no such file", "unreachable"))
        elif load.digest in self.bad:
            self.due.append(MediaFailed(name, "it is bad", "unfit"))
        else:
            self.loaded[name] = load
            self.due.append(MediaReady(name, self.work * load.rows))

    def execute(self, plan: Plan) -> None:
        self.shares = []
        for name in plan.dropped_media:
            if name in self.failed:
                self.failed.remove(name)
            elif self.begun is not None and self.begun[0].name == name:
                self.begun = None
            else:
                del self.rows[name]
        for name in plan.encode:
            assert name not in self.rows, "it is encoded already"
            if self.begun is not None and self.begun[0].name == name:
                (item, done), self.begun = self.begun, None
            else:
                item, done = self.loaded.pop(name), 0
            self._share(item, self.work * item.rows - done)
            self.rows[name] = item.rows
            self.encoded[name] += 1
        for part in plan.partly:
            item, done = self.begun or (self.loaded.pop(part.name), 0)
            assert item.name == part.name, "two items are begun"
            assert done < part.until < self.work * item.rows
            self._share(item, part.until - done)
            self.begun = (item, part.until)
            self.num_parts += 1
        assert sum(self.rows.values()) <= self.capacity, "more rows than there is room for"

    def _share(self, item: LoadMedia, work: int) -> None:
        whole = self.work * item.rows
        self.shares.append(-(-item.rows * work // whole) if whole else item.rows)

    def check_work(self, media: Media | None, start: int, end: int) -> None:
        """All that the tokens [start, end) stand for is there."""
        for span in () if media is None else media.spans:
            if span.offset >= end or span.end <= start:
                continue
            assert self.rows.get(media.items[span.item].name), "a placeholder without its rows"
            if self.whole_spans:
                first, last = span.offset, span.end
                if media is not None and media.joined:
                    first, last = media.spans[0].offset, media.spans[-1].end
                again = end - start == 1 and end == last  # A token whose mask was late.
                assert again or start <= first <= last <= end, "a span is cut"
