"""Files of every kind and mode become the picture that transformers loads from them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from penstock.media.picture import BadPicture, in_rgb, open_picture, raw_picture
from tests.shared.media.pictures import picture, saved

KINDS = {"PNG": ("1", "L", "LA", "P", "RGB", "RGBA"), "JPEG": ("L", "RGB", "CMYK")}
KINDS |= {"WEBP": ("RGB", "RGBA"), "GIF": ("L", "P", "RGB"), "BMP": ("1", "L", "P", "RGB")}
KINDS |= {"TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr")}


def in_mode(mode: str) -> Image.Image:
    if mode == "RGBA":
        alpha = Image.fromarray(np.random.default_rng(2).integers(0, 256, (30, 40), np.uint8))
        image = picture()
        image.putalpha(alpha)
        return image
    return picture().convert(mode)


@pytest.mark.parametrize(
    ("kind", "mode"), [(kind, mode) for kind, modes in KINDS.items() for mode in modes]
)
def test_kinds_and_modes(kind: str, mode: str, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(saved(in_mode(mode), kind))
    ours = open_picture(file.read_bytes(), 10_000)
    theirs = load_image(str(file))
    assert ours.mode == "RGB"
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "TIFF of big ends"])
def test_grey_of_16_bits_is_what_it_is_in_8(kind: str) -> None:
    values = np.random.default_rng(1).integers(0, 65536, (30, 40), np.uint16)
    order = ">u2" if "big" in kind else "<u2"
    image = Image.fromarray(values.astype(order))
    ours = np.asarray(open_picture(saved(image, kind.split()[0]), 10_000))
    assert (ours == (values >> 8)[..., None]).all()
    assert np.asarray(in_rgb(image)).tobytes() == ours.tobytes()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_without_a_range_are_refused(mode: str) -> None:
    with pytest.raises(BadPicture, match="whose range isn't known; 8 or 16 bits"):
        open_picture(saved(picture().convert("L").convert(mode), "TIFF"), 10_000)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_camera_held_otherwise(kind: str, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "picture"
    file.write_bytes(saved(picture(), kind, exif=exif))
    ours = open_picture(file.read_bytes(), 10_000)
    assert np.array_equal(np.asarray(ours), np.asarray(load_image(str(file))))
    assert (ours.width < ours.height) == (orientation in (5, 6, 7, 8))


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_photograph_with_a_preview_behind_it(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    preview = picture(20, 15, seed=1)
    file = tmp_path / "photo.jpg"
    photo = picture()
    photo.save(file, "MPO", save_all=True, append_images=[preview], exif=exif)
    assert file.read_bytes().startswith(b"\xff\xd8"), "a JPEG by its first bytes"
    ours = open_picture(file.read_bytes(), 10_000)
    theirs = load_image(str(file))
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    assert set(ours.size) == {40, 30}


def test_rows_of_colour() -> None:
    image = picture()
    assert raw_picture(image.tobytes(), 40, 30).tobytes() == image.tobytes()
    for width, height in ((40, 31), (0, 0), (-40, -30)):
        with pytest.raises(BadPicture):
            raw_picture(image.tobytes(), width, height)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A PNG of one colour that claims to be of that size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000))
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


ANIMATED = saved(
    picture().convert("P"), "GIF", save_all=True, append_images=[picture(seed=1), picture(seed=2)]
)
BAD = {
    "nothing": (b"", "unsupported format"),
    "text": (b"hello", "unsupported format"),
    "svg": (
        b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "unsupported format",
    ),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unsupported format"),
    "a pdf": (b"%PDF-1.4\n1 0 obj<<>>endobj\ntrailer<<>>\n", "unsupported format"),
    "an icon": (saved(picture(), "ICO"), "unsupported format"),
    "cut off": (saved(picture())[:-600], "damaged"),
    "a jpeg cut off": (saved(picture(90, 90), "JPEG")[:3000], "damaged"),
    "a head alone": (saved(picture())[:30], "(damaged|unsupported format)"),
    "animated gif": (ANIMATED, "animated"),
    "animated webp": (
        saved(picture(), "WEBP", save_all=True, append_images=[picture(seed=1)]),
        "animated",
    ),
    "animated png": (
        saved(picture(), "PNG", save_all=True, append_images=[picture(seed=1)]),
        "animated",
    ),
    "two pages": (
        saved(picture(), "TIFF", save_all=True, append_images=[picture(seed=1)]),
        "pages",
    ),
    "a bomb": (bomb(1 << 20, 1 << 20), "at most 10000"),
    "negative": (bomb(0xFFFFFFFF, 0xFFFFFFFF), "(at most|damaged|unsupported format|no pixels)"),
    "no size": (bomb(0, 0), "(no pixels|damaged|unsupported format)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_say_why_in_our_words(case: str) -> None:
    data, reason = BAD[case]
    with pytest.raises(BadPicture, match=reason) as caught:
        open_picture(data, 10_000)
    words = str(caught.value)
    assert "PIL" not in words
    assert "0x" not in words
