"""Files of a few kilobytes or megabytes that want much memory or time of whoever decodes them."""

from __future__ import annotations

import io
import re
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

from tests.shared.media import pdfs
from tests.shared.media.sounds import saved_sound, sound
from tests.shared.media.videos import movie


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, *before: bytes, rows: int = 0) -> bytes:
    """Black, of so many rows, whatever the head says. before: chunks in front of the pixels."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    packer, packed = zlib.compressobj(9), b""
    row = bytes(3 * width + 1)
    for _ in range(rows):
        packed += packer.compress(row)
    body = _chunk(b"IDAT", packed + packer.flush())
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(before) + body + _chunk(b"IEND", b"")


def text_in_png() -> bytes:
    packed = b"a\0\0" + zlib.compress(bytes(20 << 20))
    return png(4, 4, *[_chunk(b"zTXt", packed)] * 100, _chunk(b"iCCP", packed), rows=4)


def frames_in_png(count: int) -> bytes:
    return png(16, 16, _chunk(b"acTL", struct.pack(">II", count, 0)), rows=16)


def gif(width: int, height: int, frames: int) -> bytes:
    """Frames of one colour."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00"
    return head + frame * frames + b";"


def jpeg_of_scans(scans: int, size: int) -> bytes:
    """A progressive picture that goes over all of its pixels again and again."""
    file = io.BytesIO()
    Image.new("L", (size, size)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    begin = data.rindex(b"\xff\xda")
    return data[:begin] + data[begin:-2] * scans + data[-2:]


def jpeg_of_restarts() -> bytes:
    """65,500 × 65,500 pixels, of which there are restart markers alone."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65_500, 65_500)
    begin = data.index(b"\xff\xda")
    marks = b"".join(bytes((0xFF, 0xD0 + i % 8)) for i in range(500_000))
    return (
        bytes(data[:begin]) + b"\xff\xdd\0\x04\0\x01" + bytes(data[begin:-2]) + marks + b"\xff\xd9"
    )


WIDE_WEBP = bytes.fromhex("524946461a000000574542505650384c0e0000002ffeffe703071011fd0f4444ff03")
"""16,383 × 4,000 pixels of one colour, as Pillow saves them without loss."""


def tiff(width: int, height: int) -> bytes:
    """Its directory names itself as the next one."""
    tags = [(256, width), (257, height), (258, 8), (259, 8), (262, 1), (273, 200), (277, 1)]
    tags += [(278, height), (279, 100)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries
    head += struct.pack("<I", 8)
    return head.ljust(200, b"\0") + zlib.compress(bytes(100_000))


def wav(rate: int = 16_000, channels: int = 1, stated: int = 0, size: int = 1000) -> bytes:
    """stated: bytes that its head says it has."""
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 % 2**32, 2 * channels % 65536, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", stated or size)
    return b"RIFF" + struct.pack("<I", stated or len(body) + size) + body + bytes(size)


def flac(rate: int, blocks: int, seconds: int) -> bytes:
    """Blocks of silence, of 14 bytes each, and a head that says another length."""
    data = bytearray(saved_sound(np.zeros(65_535 * 2, np.float32), "FLAC", 48_000, "PCM_16"))
    total = min(seconds * rate, 2**36 - 1)
    # rate: 20 bits, channels - 1: 3, bits - 1: 5, samples: 36
    packed = rate << 44 | 0 << 41 | 15 << 36 | total
    at = data.index(b"fLaC") + 4 + 4 + 10
    data[at : at + 8] = struct.pack(">Q", packed)
    begin = data.rindex(b"\xff\xf8")
    return bytes(data) + bytes(data[begin:]) * blocks


def mp4(*changes: tuple[bytes, int, bytes]) -> bytes:
    """A short film, some of whose boxes say something else: name, offset behind it, bytes."""
    data = bytearray(movie(count=12, size=(32, 32)))
    for name, offset, value in changes:
        at = data.index(name) + 4 + offset
        data[at : at + len(value)] = value
    return bytes(data)


REFUSALS = re.compile(
    "pixels; at most|is damaged|is animated|takes longer than|needs more memory|unsupported format|"
    "is cut off|samples a second|channels|lasts|no pixels|brought down|more in it than is accepted|"
    "no sound in it|neither a PDF|holds no text|characters|needs a password"
)
"""Words of an answer that says why."""
MANY = struct.pack(">I", 0xFFFF_FFF0)


@cache
def pictures() -> dict[str, bytes]:
    """Each is refused."""
    return {
        "PNG of 50,000 × 50,000": png(50_000, 50_000),
        "PNG without end": png(2**31 - 1, 2**31 - 1),
        "PNG full of texts": text_in_png(),
        "APNG of a million frames": frames_in_png(1_000_000),
        "GIF of 300,000 frames": gif(16, 16, 300_000),
        "GIF of 65,535 × 65,535": gif(65_535, 65_535, 1),
        "JPEG of 9,000 scans": jpeg_of_scans(9000, 1500),
        "JPEG of restarts": jpeg_of_restarts(),
        "WebP of 16,383 × 4,000": WIDE_WEBP,
        "TIFF without end": tiff(2**31 - 1, 2**31 - 1),
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "BMP without end": b"BM"
        + struct.pack("<IHHI", 2**31, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 0, 0, 0, 0),
    }


@cache
def sounds() -> dict[str, bytes]:
    """Each is refused."""
    return {
        "MP3 of frames": b"\xff\xfb\x14\xc4" * 100_000,
        "WAV of 4 GHz": wav(rate=2**32 - 1),
        "WAV of a sample a second": wav(rate=1, size=100_000),
        "WAV of 65,535 channels": wav(channels=65_535),
        "FLAC of a day": flac(48_000, 100, 86_400),
        "FLAC of silence": flac(48_000, 300_000, 0),
        "FLAC of a high rate": flac(655_350, 1000, 1),
        "OGG that is cut": saved_sound(sound(1.0), "OGG")[:300],
        "MP3 of a tag": b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(1000),
        "film": movie(count=12, size=(32, 32)),
    }


@cache
def videos() -> dict[str, bytes]:
    """Each is refused."""
    return {
        "MP4 of four billion samples": mp4((b"stsz", 8, MANY)),
        "MP4 of four billion times": mp4((b"stts", 4, MANY)),
        "MP4 of a century": mp4((b"stts", 12, struct.pack(">I", 2**31 - 1))),
        "MP4 of boxes": b"".join(
            [b"\0\0\0\x18ftypisom\0\0\0\0isomiso2", b"\0\0\0\x08free" * 100_000]
        ),
        "GIF of 65,535 × 65,535": gif(65_535, 65_535, 2),
    }


@cache
def documents() -> dict[str, bytes]:
    """Each is refused."""
    return {
        "PDF of a gigabyte": pdfs.unpacks_to(1 << 30),
        "PDF of 10 ** 12 pages": pdfs.doubling(12),
        "PDF of a million pages": pdfs.many_pages(1_000_000),
        "PDF of arrays": pdfs.nested(),
        "PDF of operators": pdfs.long_operators(),
        "PDF within itself": pdfs.circular(),
        "PDF that is locked": pdfs.encrypted(),
        "text of 19 MB": b"a" * 19_000_000,
        "text of backticks": b"```" * 6_000_000,
        "text of pictographs": "😀".encode() * 4_000_000,
        "bytes": bytes(range(256)) * 70_000,
    }
