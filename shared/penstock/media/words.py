"""What messages call the kinds of media, and documents."""

from __future__ import annotations

from typing import Literal

from penstock.model.media_facts import MediaKind

SourceKind = MediaKind | Literal["document"]
"""What a request may bring. A document's text becomes part of the prompt's text."""
WORDS: dict[SourceKind, str] = {
    "image": "picture",
    "audio": "sound",
    "video": "video",
    "document": "document",
}
EXAMPLES: dict[SourceKind, str] = {
    "image": "image/png",
    "audio": "audio/wav",
    "video": "video/mp4",
    "document": "application/pdf",
}
"""An example of a file's type, for each kind."""
INVALID: dict[SourceKind, str] = {
    "image": "invalid_image",
    "audio": "invalid_audio",
    "video": "invalid_video",
    "document": "invalid_document",
}
"""The code of the error of an item that can't be taken."""
TOO_MANY: dict[MediaKind, str] = {
    "image": "too_many_images",
    "audio": "too_many_audios",
    "video": "too_many_videos",
}
"""Error code of more items than are accepted, for each kind."""
