"""Arrays of pictures, shared by forms: bytes of colour that are resized and cut up, and the numbers
that a tower gets of them. A form loads this module where it makes arrays: who counts tokens needs
no numpy.

What travels and is kept are bytes, a quarter to a tenth of the numbers' size. Both are what the
family's image processor gives in transformers, bit for bit, with Pillow's resampling.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image

from penstock.forms.geometry import Size, check_ratio
from penstock.forms.pixels import Pixels

Arrays = dict[str, np.ndarray]

PIXELS = "pixels"
"""Name of a prepared picture's array: uint8 [tiles, height, width, 3]; of pictures in parts
patches, uint8 [patches, patch, patch, 3]."""
LARGE = "large"
"""Name of a further array of a TwofoldImages: uint8 [1, height, width, 3]."""
SIZE = "size"
"""Name of an AnyresImages' array: int32 [2], height and width of the picture itself."""
SHAPES = "shapes"
"""Name of an array of pictures in parts: int32 [parts, 2], rows and columns of patches of each tile
or slice; the whole's come last or first."""
GRID = "grid"
"""Name of an array of pictures whose tower must know it: int32 [2], rows and columns of tiles."""
FRAMES = "frames"
"""Name of a prepared video's array: uint8 [frames, height, width, 3]; of a SlicedFrames patches, as
of a picture in parts, with the SHAPES of each frame's whole and its slices."""


def size_of(picture: Image.Image) -> Size:
    """(height, width), pixels."""
    return picture.height, picture.width


def resized(picture: Image.Image, size: Size, pixels: Pixels) -> np.ndarray:
    """uint8 [height, width, 3]."""
    height, width = size
    return np.asarray(picture.resize((width, height), resample=Image.Resampling(pixels.resample)))


def again(picture: Image.Image, size: Size, pixels: Pixels) -> Image.Image:
    """What `resized` gives, as a picture."""
    height, width = size
    return picture.resize((width, height), resample=Image.Resampling(pixels.resample))


def bytes_in(picture: Image.Image) -> np.ndarray:
    """uint8 [height, width, 3]."""
    return np.asarray(picture)


def resized_lying(picture: Image.Image, size: Size, pixels: Pixels) -> np.ndarray:
    """What `resized` gives of the picture on its side, upright again."""
    lying = resized(picture.transpose(Image.Transpose.TRANSPOSE), size[::-1], pixels)
    return np.ascontiguousarray(lying.transpose(1, 0, 2))


def stacked(tiles: list[np.ndarray]) -> Arrays:
    """The array of a picture whose tiles are of one size."""
    return {PIXELS: np.stack(tiles)}


def joined(made: list[Arrays], name: str) -> np.ndarray:
    """The arrays of that name, one after the other."""
    return np.concatenate([each[name] for each in made])


def two(numbers: tuple[int, int]) -> np.ndarray:
    """int32 [2]."""
    return np.array(numbers, np.int32)


def coloured(size: Size, colour: tuple[int, ...]) -> np.ndarray:
    """uint8 [height, width, 3], all of one colour."""
    made = np.empty((*size, 3), np.uint8)
    made[:] = colour
    return made


def centred(pixels: np.ndarray, size: Size) -> np.ndarray:
    """The picture between black bars."""
    missing = [whole - has for whole, has in zip(size, pixels.shape, strict=False)]
    bars = [(each // 2, each - each // 2) for each in missing]
    return np.pad(pixels, (*bars, (0, 0)))


def on_canvas(picture: Image.Image, grid: tuple[int, int], side: int, pixels: Pixels) -> Arrays:
    """Returns the tiles of a picture that fills a canvas of so many rows and columns. Several are
    followed by the whole picture as one tile."""
    rows, columns = grid
    tiles = [*cut(resized(picture, (rows * side, columns * side), pixels), side)]
    if len(tiles) > 1:
        tiles.append(resized(picture, (side, side), pixels))
    return stacked(tiles)


def filled(pixels: np.ndarray, size: Size) -> np.ndarray:
    """Black is added at the right and below."""
    below, right = (whole - has for whole, has in zip(size, pixels.shape, strict=False))
    return np.pad(pixels, ((0, below), (0, right), (0, 0))) if below or right else pixels


def within_square(
    picture: Image.Image, side: int, least: int, pixels: Pixels, *, down: bool = False
) -> Image.Image:
    """The picture, resized to fill a square one way. least: pixels of its shorter side.  down:
    whether its sides are rounded down."""
    longest = max(picture.size)
    scale = side / longest
    exact = [length / longest * side if down else length * scale for length in size_of(picture)]
    high, wide = (max(int(each) if down else round(each), least) for each in exact)
    return Image.fromarray(resized(picture, (high, wide), pixels))


def background(pixels: Pixels) -> tuple[int, ...]:
    """The colour of the mean."""
    return tuple(int(part * 255) for part in pixels.mean or (0.0, 0.0, 0.0))


def square(picture: Image.Image, colour: tuple[int, ...]) -> Image.Image:
    """The picture between bars of a colour, which make it a square. Raises BadShape."""
    check_ratio(size_of(picture))
    side = max(picture.size)
    made = Image.new("RGB", (side, side), colour)
    made.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return made


def squared_below(picture: Image.Image) -> Image.Image:
    """The picture at the top left of a black square."""
    made = Image.new("RGB", (max(picture.size), max(picture.size)))
    made.paste(picture)
    return made


def of_square(made: Image.Image) -> Arrays:
    """The array of a picture that is one tile."""
    return {PIXELS: np.asarray(made)[None]}


def middle(pixels: np.ndarray, size: Size) -> np.ndarray:
    """The picture's middle; zeros where it is smaller than `size`."""
    out = pixels
    for axis, wanted in enumerate(size):
        has = out.shape[axis]
        if has >= wanted:
            begin = (has - wanted) // 2
            out = out.take(range(begin, begin + wanted), axis)
        else:
            before = -((has - wanted) // 2)
            widths = [(0, 0)] * 3
            widths[axis] = (before, wanted - has - before)
            out = np.pad(out, widths)
    return out


def cut(pixels: np.ndarray, high: int, wide: int = 0) -> np.ndarray:
    """Cuts [height, width, 3] into [tiles, high, wide, 3], by rows. wide: 0: as high."""
    wide = wide or high
    rows, columns = pixels.shape[0] // high, pixels.shape[1] // wide
    apart = pixels.reshape(rows, high, columns, wide, 3)
    return apart.transpose(0, 2, 1, 3, 4).reshape(-1, high, wide, 3)


def in_patches(parts: list[np.ndarray], patch: int) -> Arrays:
    """The arrays of a picture in parts, [height, width, 3] each."""
    shapes = [(len(part) // patch, part.shape[1] // patch) for part in parts]
    patches = np.concatenate([cut(part, patch) for part in parts])
    return {PIXELS: patches, SHAPES: np.array(shapes, np.int32)}


def bytes_of(array: np.ndarray | None, what: str, first: str) -> np.ndarray:
    """An array of bytes of colour. what, first: say what it must be, and what its first dimension
    counts, for errors. Raises ValueError."""
    if array is None or array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        raise ValueError(f"{what} of uint8 [{first}, height, width, 3]")
    if not array.size:
        raise ValueError(what)
    return array


def pixels_in(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The bytes of colour of a prepared picture. Raises ValueError."""
    return bytes_of(arrays.get(PIXELS), "a prepared picture has pixels", "tiles")


def frames_in(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The bytes of colour of a prepared video. Raises ValueError."""
    return bytes_of(arrays.get(FRAMES), "a prepared video has frames", "frames")


def pair(array: np.ndarray | None, what: str) -> np.ndarray:
    """An array of two int32. what: says that it must be one, for errors. Raises ValueError."""
    if array is None or array.dtype != np.int32 or array.shape != (2,):
        raise ValueError(what)
    return array


def numbers(tile: np.ndarray, pixels: Pixels) -> np.ndarray:
    """float32 [3, height, width] of uint8 [height, width, 3]."""
    if pixels.rounded:
        return np.ascontiguousarray(_rounded_numbers(tile, pixels).transpose(2, 0, 1))
    scale = 1.0 if pixels.rescale is None else pixels.rescale
    values: np.ndarray = (tile.astype(np.float64) * scale).astype(np.float32)
    if pixels.mean is not None and pixels.std is not None:
        values = (values - np.array(pixels.mean, np.float32)) / np.array(pixels.std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def _rounded_numbers(tile: np.ndarray, pixels: Pixels) -> np.ndarray:
    """Numbers as of _numbers, but [height, width, 3] and rounded to bfloat16 step by step."""
    if pixels.rescale is None or pixels.mean is None or pixels.std is None:
        raise ValueError("only numbers that are scaled and normalised are rounded")
    mean, std = (_bfloat16(np.array(each, np.float32)) for each in (pixels.mean, pixels.std))
    levels = np.arange(256, dtype=np.float32)[:, None]  # a byte has few values
    scaled = _bfloat16(levels * np.float32(pixels.rescale))
    table = _bfloat16(_bfloat16(scaled - mean) / std)
    return table[tile, np.arange(3)]


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """float32, each rounded to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def of_tiles(pixels: np.ndarray, how: Pixels) -> np.ndarray:
    """float32 [tiles, 3, height, width] of uint8 [tiles, height, width, 3]."""
    return np.stack([numbers(tile, how) for tile in pixels])


def of_parts(pixels: np.ndarray, shapes: np.ndarray | None, how: Pixels, patch: int) -> Arrays:
    """float32 [patches, 3 * patch * patch], where colours come first, of the patches of all parts,
    and their shapes. Raises ValueError."""
    if pixels.shape[1:3] != (patch, patch):
        raise ValueError(f"a prepared picture's patches have {patch} pixels each way")
    if shapes is None or shapes.dtype != np.int32 or shapes.ndim != 2 or shapes.shape[1] != 2:
        raise ValueError("a prepared picture in parts has shapes of int32 [parts, 2]")
    # All patches as one high picture, whose numbers are computed at once.
    high = numbers(pixels.reshape(1, -1, patch, 3)[0], how)
    patches = high.reshape(3, len(pixels), patch, patch).transpose(1, 0, 2, 3)
    return {"pixel_values": patches.reshape(len(pixels), -1), "spatial_shapes": shapes}


def patched(frames: np.ndarray, pixels: Pixels, sizes: tuple[int, int, int]) -> Arrays:
    """The patches that groups of frames are cut into, with grid_thw int32 [3], (groups, height,
    width) in patches. sizes: of a patch, pixels; of a square that is merged, patches; of a group,
    frames. The last frame is repeated until its group is whole."""
    patch, merge, group = sizes
    count, rows, columns = len(frames), frames.shape[1] // patch, frames.shape[2] // patch
    if frames.shape[1] % (patch * merge) or frames.shape[2] % (patch * merge):
        raise ValueError(f"a prepared item's sides must be multiples of {patch * merge}")
    groups = -(-count // group)
    out = np.empty((groups, rows * columns, 3 * group * patch * patch), np.float32)
    for number, patches in enumerate(out):
        shown = [min(number * group + at, count - 1) for at in range(group)]
        values = {at: numbers(frames[at], pixels) for at in set(shown)}
        patches[:] = merged(np.stack([values[at] for at in shown]), patch, merge)
    grid = np.array([groups, rows, columns], np.int32)
    return {"pixel_values": out.reshape(groups * rows * columns, -1), "grid_thw": grid}


def merged(values: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """[patches, channels * frames * patch * patch] of [frames, channels, height, width]: the
    patches that are merged stand next to each other."""
    frames, channels, height, width = values.shape
    side = patch * merge
    blocks = values.reshape(
        frames, channels, height // side, merge, patch, width // side, merge, patch
    )
    blocks = blocks.transpose(2, 5, 3, 6, 1, 0, 4, 7)  # [rows, columns, merge, merge, channels, …]
    return blocks.reshape(-1, channels * frames * patch * patch)


WHITE = 255
CUBIC = -0.75
"""The slope of the cubic convolution's kernel at 1, as in torch (Keys, "Cubic convolution
interpolation for digital image processing", 1981)."""


def on_sheet(pixels: np.ndarray, bars: list[tuple[int, int]]) -> np.ndarray:
    """The picture between white bars."""
    return np.pad(pixels, (*bars, (0, 0)), constant_values=WHITE)


def tiles_of_sheet(sheet: np.ndarray, tile: int) -> np.ndarray:
    """The whole of a sheet, [3, height, width] float32, as one tile, then its tiles by rows:
    [tiles, 3, tile, tile]. The whole is made smaller by cubic convolution of single pixels."""
    channels, height, width = sheet.shape
    rows, columns = height // tile, width // tile
    apart = sheet.reshape(channels, rows, tile, columns, tile).transpose(1, 3, 0, 2, 4)
    whole = _every(_every(sheet, columns, 2), rows, 1)
    return np.concatenate([whole[None], apart.reshape(-1, channels, tile, tile)])


def _every(values: np.ndarray, step: int, axis: int) -> np.ndarray:
    """One number for each so many along an axis: what lies in their middle. That is one of an odd
    number; of an even one a weighted mean of the four around it."""
    if step == 1:
        return values
    count, middle = values.shape[axis], step // 2
    if step % 2:
        return values.take(range(middle, count, step), axis)
    far, near = np.float32(CUBIC / 8), np.float32(0.5 - CUBIC / 8)
    places = np.arange(middle - 1, count, step)
    taps = (np.clip(places + offset, 0, count - 1) for offset in (-1, 0, 1, 2))
    first, second, third, fourth = (values.take(tap, axis) for tap in taps)
    found: np.ndarray = first * far + second * near + third * near + fourth * far
    return found
