"""The sources of media and their bytes: a data: URI, a file, the network, an object of the program
that uses the library, or, of a sound, base64 and the name of a format, as OpenAI has it."""

from __future__ import annotations

import asyncio
import binascii
import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidRequest, TooLarge
from penstock.media.fetch import Fetcher, Unfetchable
from penstock.media.words import EXAMPLES, INVALID, WORDS, SourceKind
from penstock.model.media_facts import MediaKind

_DATA = re.compile(r"data:([^,;]{0,100})(;[^,]{0,200})?,", re.IGNORECASE)
_PIECE = 1 << 18
"""Characters of base64 that are decoded with the interpreter's lock held."""
LARGE = 1 << 20
"""Bytes from which on a thread decodes."""
MAX_PARTS = 4096
"""Pictures that a video may consist of."""


MAX_UUID = 128
"""Characters."""


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One item that a prompt brings, or names.

    where: its place in the request, for messages.  Of the next seven one is given, or none:
    url: data:, http:, https: or file:.  path: a file of the program's own choice.  data: a file's
    bytes.  rgb: rows of red, green and blue, width, height.  samples: float32, little-endian, of
    one channel, and their rate, Hz.  frames: rows of red, green and blue of all of a video's
    frames, width, height, and the numerator and denominator of frames per second.  load: reads a
    file that is kept elsewhere, asking for room first, and raises InvalidRequest.
    uuid: the caller's own name for it; alone, it stands for what was sent under it before.
    """

    where: str
    kind: SourceKind = "image"
    url: str | None = None
    path: Path | None = None
    data: bytes | None = None
    rgb: tuple[bytes, int, int] | None = None
    samples: tuple[bytes, int] | None = None
    frames: tuple[bytes, int, int, int, int] | None = None
    load: Callable[[Callable[[int], None]], Awaitable[bytes]] | None = None
    uuid: str | None = None

    def check_uuid(self) -> None:
        """Raises InvalidRequest."""
        if self.uuid is not None and not 1 <= len(self.uuid) <= MAX_UUID:
            raise InvalidRequest(
                f"{self.where}: uuid has {len(self.uuid)} characters; 1 to {MAX_UUID} are allowed",
                param=self.where,
            )

    @property
    def medium(self) -> MediaKind:
        """The kind of what isn't a document. Raises TypeError for one."""
        if self.kind == "document":
            raise TypeError("a document is no medium")
        return self.kind

    @property
    def is_name_only(self) -> bool:
        """Whether it brings nothing but a uuid."""
        given = (self.url, self.path, self.data, self.raw, self.load)
        return all(each is None for each in given)

    @property
    def raw(self) -> tuple[bytes, tuple[int, ...]] | None:
        """What isn't a file: its bytes and their shape; None for files."""
        given = self.rgb or self.samples or self.frames
        return None if given is None else (given[0], given[1:])

    def wrong(self, reason: str) -> InvalidRequest:
        """The error of an item that can't be taken. reason: follows "the picture"."""
        return InvalidRequest(
            f"{self.where}: the {WORDS[self.kind]} {reason}",
            param=self.where,
            code=INVALID[self.kind],
        )

    def too_large(self, most: int) -> TooLarge:
        """The error of an item whose file is too large."""
        return TooLarge(
            f"{self.where}: the {WORDS[self.kind]}'s file has more than {most} bytes, the most "
            "that is accepted (--max-media-bytes)",
            param=self.where,
            code="request_too_large",
        )


class SourceReader:
    """Reads items' bytes. most: bytes of one.  folder: whose files a file: URL may name, if any."""

    def __init__(self, most: int, folder: Path | None, fetcher: Fetcher) -> None:
        self._most = most
        self._folder = folder
        self._fetcher = fetcher

    async def read(self, source: MediaSource, take: Callable[[int], None]) -> bytes:
        """The bytes of its file, or of its rows. take: asked for room before memory is used; may
        raise.  Raises InvalidRequest, TooLarge."""
        bounded = self._bounded(source, take)
        if source.raw is not None:
            take(len(source.raw[0]))
            return source.raw[0]
        if source.data is not None:
            bounded(len(source.data))
            return source.data
        if source.load is not None:
            return await source.load(bounded)
        if source.path is not None:
            return await _read_file(source, source.path, None, bounded)
        url = source.url or ""
        if url[:5].lower() == "data:":
            return await _decoded(source, url, bounded)
        if url[:5].lower() == "file:":
            return await _read_file(source, self._local(source, url), self._folder, bounded)
        try:
            return await self._fetcher.fetch(url, bounded, source.kind)
        except Unfetchable as error:
            raise source.wrong(str(error)) from None

    async def read_parts(
        self, source: MediaSource, take: Callable[[int], None]
    ) -> tuple[bytes, tuple[int, ...]]:
        """The bytes as `read` gives them; where the item comes as several files, frames of a video,
        also the number of bytes of each, which follow one another."""
        if source.kind != "video" or (source.url or "")[:15].lower() != "data:video/jpeg":
            return await self.read(source, take), ()
        return await _decoded_parts(source, source.url or "", self._bounded(source, take))

    def _bounded(self, source: MediaSource, take: Callable[[int], None]) -> Callable[[int], None]:
        taken = 0

        def bounded(size: int) -> None:
            nonlocal taken
            taken += size
            if taken > self._most:
                raise source.too_large(self._most)
            take(size)

        return bounded

    def _local(self, source: MediaSource, url: str) -> Path:
        if self._folder is None:
            raise source.wrong(
                "is a local file; none may be named here (--allowed-local-media-path says which)"
            )
        try:
            parts = urlsplit(url)
        except ValueError:
            raise source.wrong("has an invalid URL") from None
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
            raise source.wrong("has a file: URL without an absolute path")
        return Path(path)


async def _decoded_parts(
    source: MediaSource, url: str, take: Callable[[int], None]
) -> tuple[bytes, tuple[int, ...]]:
    """Pictures with commas between them, as vLLM takes them."""
    text = _text(source, url)
    take(3 * len(text) // 4)
    if text.count(",") >= MAX_PARTS:
        raise source.wrong(f"has {text.count(',') + 1} frames; at most {MAX_PARTS} are accepted")
    return await asyncio.to_thread(_all_base64, source, text)


def _all_base64(source: MediaSource, text: str) -> tuple[bytes, tuple[int, ...]]:
    try:
        parts = [_base64(part) for part in text.split(",")]
    except ValueError:
        raise source.wrong("has a data: URI whose base64 is broken") from None
    return b"".join(parts), tuple(map(len, parts))


async def _decoded(source: MediaSource, url: str, take: Callable[[int], None]) -> bytes:
    text = _text(source, url)
    take(3 * len(text) // 4)
    try:
        if len(text) < LARGE:
            return _base64(text)
        return await asyncio.to_thread(_base64, text)
    except ValueError:
        raise source.wrong("has a data: URI whose base64 is broken") from None


def _text(source: MediaSource, url: str) -> str:
    """The base64 of a data: URI."""
    found = _DATA.match(url)
    if found is None:
        usual = EXAMPLES[source.kind]
        raise source.wrong(f"has an invalid data: URI; data:{usual};base64,… is needed")
    kind, options = found[1].strip().lower(), (found[2] or "").lower()
    if not options.rstrip().endswith(";base64"):
        raise source.wrong("has a data: URI that isn't base64")
    allowed = (f"{source.kind}/", "application/octet-stream")
    if kind and source.kind != "document" and not kind.startswith(allowed):
        raise source.wrong(f"has a data: URI of type {kind[:60]}; {source.kind}/… is needed")
    return url[found.end() :]


_USUAL = bytes.maketrans(b"-_", b"+/")


def _base64(text: str) -> bytes:
    """Strict: what is skipped silently could be most of it. Line breaks are allowed (MIME), and
    padding may be missing (RFC 4648, 3.2), and the letters may be those of URLs (5)."""
    decoded, left = [], b""
    for begin in range(0, len(text), _PIECE):
        given = text[begin : begin + _PIECE].encode("ascii")
        piece = left + given.translate(_USUAL, b" \r\n\t")
        # The last characters may be padded, and wait for what comes.
        whole = max(0, len(piece) - 5) // 4 * 4
        decoded.append(binascii.a2b_base64(piece[:whole], strict_mode=True))
        if b"=" in piece[max(0, whole - 2) : whole]:
            raise binascii.Error("padding before the end")
        left = piece[whole:]
    padded = left + b"=" * (-len(left) % 4)
    return b"".join([*decoded, binascii.a2b_base64(padded, strict_mode=True)])


async def _read_file(
    source: MediaSource, path: Path, folder: Path | None, take: Callable[[int], None]
) -> bytes:
    """folder: that the file must lie in, links resolved; None: anywhere."""
    refused = source.wrong(
        "isn't a readable file"
        + ("" if folder is None else " in the folder of --allowed-local-media-path")
    )
    try:
        file, size = await asyncio.to_thread(_opened, path, folder)
    except (OSError, ValueError):
        raise refused from None
    with file:
        take(size)
        try:
            return await asyncio.to_thread(file.read, size)
        except OSError:
            raise refused from None


def _opened(path: Path, folder: Path | None) -> tuple[IO[bytes], int]:
    """The file and its bytes. Raises OSError or ValueError."""
    if folder is not None and not Path(os.path.realpath(path)).is_relative_to(folder):
        raise OSError("outside")
    # Not blocking: opening a pipe would wait for who writes to it.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(fd, "rb")  # noqa: SIM115
    status = os.fstat(fd)
    # What was opened, and not what the name may lead to by now.
    real = Path(os.readlink(f"/proc/self/fd/{fd}"))
    if not stat.S_ISREG(status.st_mode) or (folder and not real.is_relative_to(folder)):
        file.close()
        raise OSError("outside, or no plain file")
    return file, status.st_size


async def off_the_loop(size: int, run: Any, *arguments: Any) -> Any:
    """`run`'s result, from a thread where it looks at many bytes."""
    if size < LARGE:
        return run(*arguments)
    return await asyncio.to_thread(run, *arguments)


SOUND_FORMATS = ("wav", "mp3", "flac", "ogg", "opus", "aiff", "m4a", "mp4", "aac", "webm")


def sound_uri(given: Any, where: str) -> str:
    """Returns a sound as a data: URI. given: an object with `data`, base64, and `format`.  where:
    its place in the request. Raises InvalidRequest."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"{where} must be an object with data and format", param=where, code="invalid_type"
        )
    data, form = given.get("data"), given.get("format")
    if form not in SOUND_FORMATS:
        raise InvalidRequest(
            f"{where}.format is {str(form)[:80]!r}; allowed: {', '.join(SOUND_FORMATS)}",
            param=f"{where}.format",
            code="invalid_value",
        )
    if not isinstance(data, str):
        raise InvalidRequest(
            f"{where}.data must be the file in base64", param=f"{where}.data", code="invalid_type"
        )
    return f"data:audio/{form};base64,{data}"
