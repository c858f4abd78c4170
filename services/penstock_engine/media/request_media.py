"""The media of one request: where they stand in its prompt, and what they are called."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from penstock.protocol.media import Media, MediaItem, MediaSpan

_ENCODE = msgspec.msgpack.Encoder().encode

IDENTITY_BYTES = 32


def identity(item: MediaItem) -> bytes:
    """Stands for all that is said of an item: its name, and what its embeddings and positions
    depend on. Who says something else under the same name means another item."""
    return blake2b(_ENCODE(item), digest_size=IDENTITY_BYTES).digest()


class Whole(NamedTuple):
    """Tokens of a prompt that are computed in one step, of a model whose spans are seen as a
    whole: a span, or all from the first span to the last where these are joined."""

    start: int  # first token
    end: int  # after the last


class Cluster(NamedTuple):
    """Items whose rows are needed at the same time: an item from its first placeholder to its
    last, and whatever stands in between; all items of spans that are joined. Mostly it is one."""

    start: int  # first token
    end: int  # after the last
    items: tuple[int, ...]


class RequestMedia:
    """A prompt's items and spans, as the engine core uses them.

    media: with the items' names between engine core and workers, which stand for the item and for
    `root`: who may share its encoding.
    """

    __slots__ = (
        "_identities",
        "_joined",
        "_lasts",
        "_starts",
        "clusters",
        "end",
        "media",
        "numbers",
    )

    def __init__(self, media: Media, root: bytes, prompt_token_ids: Sequence[int]) -> None:
        """media: checked, see handlers.media_validation."""
        self._identities = [identity(item) for item in media.items]
        names = [
            blake2b(root + own, digest_size=IDENTITY_BYTES).hexdigest() for own in self._identities
        ]
        items = [
            msgspec.structs.replace(item, name=name)
            for item, name in zip(media.items, names, strict=True)
        ]
        self.media = Media(tuple(items), media.spans, media.joined)
        self.numbers = {name: number for number, name in enumerate(names)}
        """Numbers of the items, by their names here."""
        self._starts = [span.offset for span in media.spans]
        self._lasts = [0] * len(items)
        for span in media.spans:
            self._lasts[span.item] = span.end
        self.end = media.spans[-1].end
        """Position after the last placeholder."""
        self.clusters = clusters_of(media)
        self._joined = self._content(prompt_token_ids) if media.joined else b""
        """Stands for all from the first span to the last, where these are joined."""

    def spans(self, start: int, end: int) -> list[MediaSpan]:
        """Spans that overlap tokens [start, end), in order."""
        spans = self.media.spans
        first = max(bisect_right(self._starts, start) - 1, 0)
        if spans[first].end <= start:
            first += 1
        last = bisect_right(self._starts, end - 1)
        return list(spans[first:last])

    def needed(self, computed: int) -> list[MediaItem]:
        """Items of which a placeholder lies after the first `computed` tokens."""
        return [
            item
            for item, last in zip(self.media.items, self._lasts, strict=True)
            if last > computed
        ]

    def cluster_at(self, token: int) -> Cluster:
        """The one that a placeholder is in."""
        at = bisect_right(self.clusters, token, key=lambda cluster: cluster.start) - 1
        return self.clusters[at]

    def needed_with(self, span: MediaSpan, computed: int) -> list[MediaItem]:
        """Items whose rows are needed together with those of the span, after so many tokens."""
        items, lasts = self.media.items, self._lasts
        cluster = self.cluster_at(span.offset)
        return [items[number] for number in cluster.items if lasts[number] > computed]

    def whole_at(self, token: int) -> Whole | None:
        """What the token is computed with in one step, where spans are seen as a whole; None: it is
        text by itself."""
        if self.media.joined:
            (whole,) = wholes_of(self.media)
            return whole if whole.start <= token < whole.end else None
        found = self.spans(token, token + 1)
        return Whole(found[0].offset, found[0].end) if found else None

    def whole_before(self, computed: int) -> int:
        """Most tokens, at most so many, at which nothing is cut that is computed in one step."""
        cut = self.whole_at(computed)
        return computed if cut is None else cut.start

    def contents(self, start: int, end: int) -> bytes:
        """Returns the media content of tokens [start, end), as part of their KV block's key: empty
        where no span overlaps them."""
        if self.media.joined:
            (whole,) = wholes_of(self.media)
            inside = start < whole.end and whole.start < end
            return self._joined + _ENCODE(whole.start - start) if inside else b""
        parts = []
        for span in self.spans(start, end):
            place = (span.offset - start, span.tokens, span.first)
            parts.append(self._identities[span.item] + _ENCODE(place))
        return b"".join(parts)

    def _content(self, prompt_token_ids: Sequence[int]) -> bytes:
        """What joined spans are, whose tokens depend on one another, with the text between."""
        (whole,) = wholes_of(self.media)
        hashed = blake2b(array("i", prompt_token_ids[whole.start : whole.end]).tobytes())
        for span in self.media.spans:
            place = (span.offset - whole.start, span.tokens, span.first)
            hashed.update(self._identities[span.item] + _ENCODE(place))
        return hashed.digest()[:IDENTITY_BYTES]


def wholes_of(media: Media) -> list[Whole]:
    """What of a prompt is computed in one step each, where spans are seen as a whole, in order."""
    if media.joined:
        return [Whole(media.spans[0].offset, media.spans[-1].end)]
    return [Whole(span.offset, span.end) for span in media.spans]


def clusters_of(media: Media) -> list[Cluster]:
    """The clusters of a prompt's spans, in order."""
    if media.joined:
        return [Cluster(*wholes_of(media)[0], tuple(range(len(media.items))))]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for span in media.spans:
        first.setdefault(span.item, span.offset)
        last[span.item] = span.end
    found: list[Cluster] = []
    for item, start in first.items():  # By their first placeholders.
        if found and start < found[-1].end:
            before = found.pop()
            found.append(Cluster(before.start, max(before.end, last[item]), (*before.items, item)))
        else:
            found.append(Cluster(start, last[item], (item,)))
    return found


def most_rows(media: Media) -> int:
    """Rows of encodings that are needed at a time, at most."""
    rows = [item.rows for item in media.items]
    return max(sum(rows[item] for item in cluster.items) for cluster in clusters_of(media))
