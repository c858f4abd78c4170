"""Messages from the engine core to a worker about what coming steps use: grammars, media and
adapters. They are handled concurrently with steps."""

from __future__ import annotations

import msgspec

from penstock.model.media_facts import MediaKind
from penstock.protocol.common import Grammar

MAX_COMPILING = 4
"""Grammars that a worker is asked to compile at a time. It starts each of them immediately, because
the time limit of each counts from then on."""


class CompileGrammar(msgspec.Struct, frozen=True, tag="compile_grammar"):
    """Asks the worker to compile a grammar. Answered by GrammarReady or GrammarFailed, while steps
    continue."""

    grammar: int
    """A number that the engine core has not used before in this session."""
    definition: Grammar


class DropGrammar(msgspec.Struct, frozen=True, tag="drop_grammar"):
    """Says that no sequence will be admitted with this grammar any more. Not answered."""

    grammar: int


class LoadMedia(msgspec.Struct, frozen=True, tag="load_media"):
    """Announces a prepared item, which is to be encoded. Sent to the ranks of the first stage,
    which answer MediaReady or MediaFailed, while steps continue. Fields without a docstring are as
    in MediaItem."""

    name: str
    """Name of the item between engine core and workers, 64 hexadecimal digits. It depends on the
    item and on who may share its encoding."""
    kind: MediaKind
    rows: int
    size: int
    digest: str
    grid: tuple[int, ...] = ()
    path: str = ""
    """The file that holds the prepared item (see from_frontend.MediaFile); empty: its bytes come by
    LoadMediaChunk."""


class LoadMediaChunk(msgspec.Struct, frozen=True, tag="load_media_chunk"):
    """Brings more bytes of an item, in the message's one further frame: MAX_MEDIA_CHUNK of them, or
    the rest of the item. Answered by MediaTaken; after the last ones by MediaReady or MediaFailed
    instead."""

    name: str
    offset: int
    """Place of the chunk's first byte in the item; chunks come in order."""


class DropMedia(msgspec.Struct, frozen=True, tag="drop_media"):
    """Says that an item is not going to be encoded, so that its bytes can be forgotten. Not
    answered. The worker may not know the item, if it failed before."""

    name: str


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Asks for an adapter to be loaded, for steps to come. Answered by every rank, with
    AdapterReady or AdapterFailed, while steps continue. At most Setup.max_loras are loaded at a
    time."""

    adapter: str
    """The digest of its contents, 64 hexadecimal digits."""
    path: str
    """The adapter's folder or file, which the worker reads and whose digest it checks."""


class DropAdapter(msgspec.Struct, frozen=True, tag="drop_adapter"):
    """Says that no sequence will be admitted with this adapter any more, unless it is loaded again.
    It stays until the slots that use it are released. Not answered. The worker may not know the
    adapter, if it failed before."""

    adapter: str
