"""Files of every kind and mode become the picture that transformers loads from them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from transformers.image_utils import load_image

from penstock.config.settings import MediaSettings
from penstock.errors import StartupError
from penstock.media.background import background
from penstock.media.item_names import item_name
from penstock.media.picture import BadPicture, in_rgb, open_picture, raw_picture
from penstock.media.sources import MediaSource
from tests.shared.media.pictures import PREPARATION, picture, saved

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
    if mode in ("RGBA", "LA"):  # There transformers shows what is beneath; see below.
        assert ours.size == theirs.size
        return
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


def _clear_circle(mode: str) -> Image.Image:
    """A black circle; around it nothing, with red beneath."""
    image = Image.new("RGBA", (40, 30), (255, 0, 0, 0))
    ImageDraw.Draw(image).ellipse((10, 5, 29, 24), (0, 0, 0, 255))
    if mode == "P":
        return image.quantize(8)
    return image.convert(mode)


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 255, 0)])
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("PNG", mode) for mode in ("RGBA", "LA", "P")),
        *(("WEBP", "RGBA"), ("GIF", "RGBA"), ("TIFF", "RGBA")),
    ],
)
def test_what_is_transparent_lets_the_background_through(
    kind: str, mode: str, colour: tuple[int, int, int]
) -> None:
    more = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    rows = np.asarray(open_picture(saved(_clear_circle(mode), kind, **more), 10_000, colour))
    assert rows[0, 0].tolist() == list(colour)
    assert rows[15, 20].tolist() == [0, 0, 0]


def test_what_is_half_transparent_is_mixed_as_pillow_mixes_it() -> None:
    image = picture()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    ours = np.asarray(open_picture(saved(image), 10_000)).astype(int)
    assert np.abs(ours - np.asarray(white).astype(int)).max() <= 1


def test_a_colour_that_stands_for_nothing_lets_the_background_through() -> None:
    image = Image.new("RGB", (40, 30), (255, 0, 0))
    data = saved(image, "PNG", transparency=(255, 0, 0))
    assert (np.asarray(open_picture(data, 10_000)) == 255).all()


@pytest.mark.parametrize(
    "text", ['{"image": {"rgba_background_color": [1, 2]}}', '{"image": {"x": 1}}', '{"image": 3}']
)
def test_a_background_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match="rgba_background_color"):
        background(MediaSettings(media_io_kwargs=text))


def test_a_background_is_part_of_an_items_name() -> None:
    text = '{"image": {"rgba_background_color": [0, 255, 0]}}'
    green = background(MediaSettings(media_io_kwargs=text))
    assert green == (0, 255, 0)
    source = MediaSource("here", data=b"x")
    names = {item_name(PREPARATION, source, b"x", (), each) for each in ((), green)}
    assert len(names) == 2


def test_what_is_transparent_in_a_clip_lets_the_background_through() -> None:
    from penstock.media.clip import Clip

    first, second = (_clear_circle("RGBA") for _ in range(2))
    data = saved(first, "GIF", save_all=True, append_images=[second], duration=100, disposal=2)
    green = (0, 255, 0)
    with Clip(data, seconds=10, max_pixels=10_000, background=green) as clip:
        for frame in clip.frames(range(clip.total)):
            rows = np.asarray(frame)
            assert rows[0, 0].tolist() == list(green)
            assert rows[15, 20].max() < 16
