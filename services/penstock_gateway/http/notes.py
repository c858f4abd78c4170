"""What a reply's header `x-penstock-warning` says: that something was left out, without which the
request could be answered."""

from __future__ import annotations

from contextvars import ContextVar

HEADER = "x-penstock-warning"
_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)


def begin_notes() -> list[str]:
    """Returns what the request that begins here will have noted. Tasks that it starts note it
    too."""
    notes: list[str] = []
    _notes.set(notes)
    return notes


def note(text: str) -> None:
    """Notes a sentence in ASCII, once. Without effect where no reply can bring it any more, and
    outside of a request."""
    notes = _notes.get()
    if notes is not None and text not in notes:
        notes.append(text)


def header_of(notes: list[str]) -> list[tuple[bytes, bytes]]:
    """The header; none where nothing was noted."""
    return [(HEADER.encode(), "; ".join(notes).encode("ascii", "replace"))] if notes else []
