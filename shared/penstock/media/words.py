"""What messages call the kinds of media."""

from __future__ import annotations

from penstock.model.media_facts import MediaKind

WORDS: dict[MediaKind, str] = {"image": "picture", "audio": "sound", "video": "video"}
EXAMPLES: dict[MediaKind, str] = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
"""An example of a file's type, for each kind."""
INVALID: dict[MediaKind, str] = {
    "image": "invalid_image",
    "audio": "invalid_audio",
    "video": "invalid_video",
}
"""The code of the error of an item that can't be taken."""
TOO_MANY: dict[MediaKind, str] = {
    "image": "too_many_images",
    "audio": "too_many_audios",
    "video": "too_many_videos",
}
"""Error code of more items than are accepted, for each kind."""
