"""From a file's bytes to an upright picture in RGB. Runs in a helper process: the bytes are a
stranger's."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The picture formats that are read, by Pillow's names."""
WHITE = (255, 255, 255)
_ORIENTATION = 0x0112
"""EXIF's tag: how the camera was held."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadPicture(ValueError):
    """The bytes are no picture that is read here; says why, to follow "the picture"."""


def open_picture(data: bytes, max_pixels: int, background: tuple[int, ...] = WHITE) -> Image.Image:
    """The picture in RGB, turned as its EXIF data say. background: red, green and blue shown
    through transparent parts. Raises BadPicture, and MemoryError.

    As transformers' load_image does, but for what `in_rgb` says.
    """
    # Our own bound is checked before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            _check(picture, max_pixels)
            turn = _turn(picture)
            rgb = in_rgb(picture, background)
    except (BadPicture, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadPicture(f"has an unsupported format; supported: {', '.join(FORMATS)}") from None
    except Exception:  # Pillow's decoders raise whatever their damaged input leads them to.
        raise BadPicture("is damaged: it can't be decoded") from None
    return rgb if turn is None else rgb.transpose(turn)


def in_rgb(picture: Image.Image, background: tuple[int, ...] = WHITE) -> Image.Image:
    """The picture with 8 bits a colour. Raises BadPicture for one whose numbers have no range.

    What is transparent lets the background through, as it does for who looks at the picture;
    Pillow's own conversion shows the colours that lie beneath.
    Of grey of 16 bits, the upper 8 are kept, as Pillow does with colours of 16 bits. Its own
    conversion, and so transformers', takes numbers over 255 for 255: almost all of it is white.
    """
    mode = picture.mode
    if mode in ("I", "F"):
        raise BadPicture(
            "has numbers of 32 bits for pixels, or signed ones, whose range isn't known; 8 or 16 "
            "bits for grey or a colour are needed"
        )
    if mode.startswith("I;16"):
        upper = 0 if mode.endswith("B") else 1
        picture = Image.frombytes("L", picture.size, picture.tobytes()[upper::2])
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    whole = Image.new("RGBA", picture.size, (*background, 255))
    whole.alpha_composite(picture.convert("RGBA"))
    return whole.convert("RGB")


def raw_picture(data: bytes, width: int, height: int) -> Image.Image:
    """The picture whose rows of red, green and blue bytes these are. Raises BadPicture."""
    if width < 1 or height < 1 or len(data) != 3 * width * height:
        raise BadPicture(f"has {len(data)} bytes, which are not {width} × {height} of RGB")
    return Image.frombytes("RGB", (width, height), data)


def _check(picture: Image.Image, max_pixels: int) -> None:
    width, height = picture.size
    if width < 1 or height < 1:
        raise BadPicture("has no pixels")
    if width * height > max_pixels:
        raise BadPicture(
            f"has {width} × {height} pixels; at most {max_pixels} are accepted (--max-media-pixels)"
        )
    # MPO: a photograph with a preview or a depth map after it, as phones and cameras make them.
    if picture.format != "MPO" and getattr(picture, "is_animated", False):
        raise BadPicture("is animated, or has several pages; one that stands still is needed")


def _turn(picture: Image.Image) -> Image.Transpose | None:
    try:
        return _TURNS.get(picture.getexif().get(_ORIENTATION, 1))
    except MemoryError:
        raise
    except Exception:  # Broken EXIF data say nothing; the pixels may be sound.
        return None
