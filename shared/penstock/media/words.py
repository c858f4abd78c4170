"""What messages call the kinds of media."""

from __future__ import annotations

from penstock.media_facts import MediaKind

WORDS: dict[MediaKind, str] = {"image": "picture", "audio": "sound", "video": "video"}
EXAMPLES: dict[MediaKind, str] = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
"""Of a file's type."""
