"""Pictures of this machine in a conversation: --image FILE, and /image FILE."""

from __future__ import annotations

import argparse
import base64
import mimetypes
from pathlib import Path
from typing import Any

from penstock.errors import InvalidRequest

MAX_BYTES = 64 << 20
"""Of a file; a server has its own, smaller bound."""


def add_image(parser: argparse.ArgumentParser) -> None:
    """--image, which may be given several times."""
    parser.add_argument(
        "--image",
        dest="images",
        action="append",
        default=[],
        metavar="FILE",
        help="A picture that the first message shows; may be given several times.",
    )


def picture_part(file: str) -> dict[str, Any]:
    """A part of a message. Raises InvalidRequest for a file that can't be read."""
    path = Path(file).expanduser()
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InvalidRequest(f"{file} has {size} bytes; at most {MAX_BYTES} are sent")
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read: {error.strerror}") from None
    kind, _ = mimetypes.guess_type(path.name)
    if kind is None or not kind.startswith("image/"):
        kind = "application/octet-stream"
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"},
    }


def content_with(pictures: list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    """A message's content: the text, behind the pictures if there are some."""
    return [*pictures, {"type": "text", "text": text}] if pictures else text


def words_of(content: str | list[dict[str, Any]]) -> str:
    """The content for a person: its text, and a word for each picture."""
    if isinstance(content, str):
        return content
    return "\n\n".join(part.get("text", "*(a picture)*") for part in content)
