"""Files of this machine in a conversation: --image FILE and /image FILE, and the same of sounds
and videos."""

from __future__ import annotations

import argparse
import base64
import mimetypes
from pathlib import Path
from typing import Any

from penstock.errors import InvalidRequest
from penstock.media.words import WORDS
from penstock.model.media_facts import MediaKind

MAX_BYTES = 64 << 20
"""Most bytes of a file; a server has its own, smaller bound."""
KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")
"""Names of options and commands."""


def add_media(parser: argparse.ArgumentParser) -> None:
    """--image and its like, each of which may be given several times."""
    for kind in KINDS:
        parser.add_argument(
            f"--{kind}",
            dest=f"{kind}_files",
            action="append",
            default=[],
            metavar="FILE",
            help=f"A {WORDS[kind]} for the first message; may be given several times.",
        )


def given_files(arguments: argparse.Namespace) -> list[tuple[MediaKind, str]]:
    """Files that the command line names, with their kinds."""
    return [(kind, file) for kind in KINDS for file in getattr(arguments, f"{kind}_files")]


def given_parts(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Files that the command line names, as parts of a message. Raises InvalidRequest for a file
    that can't be read."""
    return [media_part(kind, file) for kind, file in given_files(arguments)]


def media_part(kind: MediaKind, file: str) -> dict[str, Any]:
    """A part of a message. Raises InvalidRequest for a file that can't be read."""
    path = Path(file).expanduser()
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InvalidRequest(f"{file} has {size} bytes; at most {MAX_BYTES} are sent")
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read: {error.strerror}") from None
    mime, _ = mimetypes.guess_type(path.name)
    if mime is None or not mime.startswith(f"{kind}/"):
        mime = "application/octet-stream"
    name = f"{kind}_url"
    return {"type": name, name: {"url": f"data:{mime};base64,{base64.b64encode(data).decode()}"}}


def content_with(media: list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    """A message's content: the text, after the media if there are some."""
    return [*media, {"type": "text", "text": text}] if media else text


def words_of(content: str | list[dict[str, Any]]) -> str:
    """The content for a person: its text, and a word for each item of media."""
    if isinstance(content, str):
        return content
    return "\n\n".join(part.get("text", _word(part)) for part in content)


def _word(part: dict[str, Any]) -> str:
    kind = next((kind for kind in KINDS if part.get("type") == f"{kind}_url"), KINDS[0])
    return f"*(a {WORDS[kind]})*"
