"""The media of a request, as messages of several directions have them."""

from __future__ import annotations

import typing
from typing import Literal

import msgspec

from penstock.model.media_facts import MediaKind

if typing.TYPE_CHECKING:
    Bytes = bytes | memoryview
else:
    Bytes = memoryview  # Which msgspec decodes without a copy.


MAX_MEDIA_ITEMS = 256
"""Most items of a request."""


MEDIA_OVERHEAD = 4096
"""Bytes that a prepared item counts for in addition to its own."""


MAX_MEDIA_SPANS = 16_384
"""Most spans of a request: an item may have one for each of its tiles or frames."""


MAX_MEDIA_CHUNK = 1_048_576
"""Bytes of an item in one message."""


MediaFailure = Literal["unreachable", "damaged", "unfit"]
"""Why a worker can't take or encode an item. unreachable: it can't open the file, as on another
host; the item is asked for in chunks then. damaged: size or digest are others than those stated.
unfit: the model's encoder can't take it."""


class MediaItem(msgspec.Struct, frozen=True, array_like=True):
    """A picture, a sound or a video, prepared for the model's encoder. It holds no bytes: these
    are asked for by NeedMedia."""

    name: str
    """64 hexadecimal digits: SHA-256 over kind, the preparation's digest and the original bytes,
    each after its length."""
    kind: MediaKind
    rows: int
    """Embeddings that its encoding yields."""
    size: int
    """Bytes of the prepared item (see penstock.media.prepared)."""
    digest: str
    """SHA-256 of the prepared item, hexadecimal; the receiver verifies it."""
    grid: tuple[int, ...] = ()
    """What positions depend on, as the model's family defines it: for M-RoPE (frames, rows,
    columns) in merged patches. Empty where positions just count."""


class MediaSpan(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive placeholders in a prompt, which stand for embeddings of an item."""

    item: int
    """Index into Media.items."""
    offset: int
    """Place of the first placeholder, in prompt tokens."""
    tokens: int
    """Placeholders, one for each embedding."""
    first: int = 0
    """The item's embedding that stands at `offset`; the others follow it."""

    @property
    def end(self) -> int:
        """The first token after it."""
        return self.offset + self.tokens


class Media(msgspec.Struct, frozen=True, array_like=True):
    """The media of a prompt."""

    items: tuple[MediaItem, ...]
    """Items that have a span, in any order; each once, even if it is shown several times."""
    spans: tuple[MediaSpan, ...]
    """The spans in the order of their offsets, without overlap."""
    joined: bool = False
    """Whether the tokens of all spans see one another, those of later spans too, but no later token
    of the text between spans; so from the first span to the last, all is computed in one step.
    False: spans see one another as the model says of each by itself (Ready.whole_spans)."""
