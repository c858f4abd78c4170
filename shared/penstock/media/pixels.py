"""A prepared picture as numbers for a tower.

What travels and is kept are bytes, a quarter to a tenth of the numbers' size; a worker calls
`inputs`.  It gives what the family's image processor gives in transformers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.media import overlaps, sheets
from penstock.model.image_facts import (
    AnyresImages,
    BarredImages,
    DocumentImages,
    NaflexImages,
    OverlappingImages,
    PatchImages,
    Pixels,
    SheetImages,
    SlicedImages,
    TwofoldImages,
    WindowedImages,
)
from penstock.model.media_facts import Preparation
from penstock.model.sound_facts import SoundPreparation
from penstock.model.video_facts import MarkedFrames, SlicedFrames, VideoFrames, VideoPreparation

PIXELS = "pixels"
"""Name of a prepared picture's array: uint8 [tiles, height, width, 3]."""
LARGE = "large"
"""Name of a further array of a TwofoldImages: uint8 [1, height, width, 3]."""
SIZE = "size"
"""Name of an AnyresImages' array: int32 [2], height and width of the picture itself."""
SHAPES = "shapes"
"""Name of an array of pictures in parts (NaflexImages, SlicedImages, DocumentImages,
WindowedImages): int32 [parts, 2], rows and columns of patches of each tile or slice; the whole's
come last or first. Its pixels are patches, uint8 [patches, patch, patch, 3]."""
GRID = "grid"
"""Name of an array of a DocumentImages in lines, a SheetImages and an OverlappingImages: int32 [2],
rows and columns of tiles."""
CUBIC = -0.75
"""The slope of the cubic convolution's kernel at 1, as in torch (Keys, "Cubic convolution
interpolation for digital image processing", 1981)."""
PARTED = (NaflexImages, SlicedImages, DocumentImages, WindowedImages)
FRAMES = "frames"
"""Name of a prepared video's array: uint8 [frames, height, width, 3]; of a SlicedFrames patches, as
of a picture in parts, with the SHAPES of each frame's whole and its slices."""


def inputs(image: Preparation, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What transformers' image processor gives for the picture, for its model.

    pixel_values: float32 [tiles, 3, height, width]; for a PatchImages [patches, 3 * frames * patch
    * patch], with grid_thw int32 [3], (1, height, width) in patches; for pictures in parts
    [patches, 3 * patch * patch], where colours come first, with spatial_shapes int32
    [parts, 2]; for a TwofoldImages with large_pixel_values; for an AnyresImages with image_size
    int32 [2], (height, width) of the picture itself; for a SheetImages with image_size, that of the
    picture on its sheet, and tile_grid int32 [2], rows and columns of tiles, of which the whole is
    the first; for an OverlappingImages with pooled int32 [rows, patches] and marks int32 [rows],
    see `overlaps.pooled`.
    arrays: of the prepared item, see `penstock.media.prepared`.  Raises ValueError for what no
    preparation yields.
    """
    if isinstance(image, SoundPreparation | VideoPreparation):
        raise ValueError("the model takes no pictures")
    pixels = _bytes(arrays.get(PIXELS), "a prepared picture has pixels", "tiles")
    if isinstance(image, AnyresImages):
        size = arrays.get(SIZE)
        if size is None or size.dtype != np.int32 or size.shape != (2,):
            raise ValueError("a prepared picture in tiles has a size of two int32")
        values = np.stack([_numbers(tile, image.pixels) for tile in pixels])
        return {"pixel_values": values, "image_size": size}
    if isinstance(image, TwofoldImages):
        large = _bytes(arrays.get(LARGE), "a prepared picture has a large one", "tiles")
        if len(pixels) != 1 or len(large) != 1:
            raise ValueError("a prepared picture is one tile of each size here")
        return {
            "pixel_values": _numbers(pixels[0], image.pixels)[None],
            "large_pixel_values": _numbers(large[0], image.large_pixels)[None],
        }
    if isinstance(image, SheetImages):
        return _on_sheet(image, pixels, arrays.get(GRID))
    if isinstance(image, OverlappingImages):
        return _in_crops(image, pixels, arrays.get(GRID))
    if isinstance(image, PARTED):
        parts = _of_parts(image, pixels, arrays.get(SHAPES))
        if isinstance(image, DocumentImages) and image.lines:
            grid = arrays.get(GRID)
            if grid is None or grid.dtype != np.int32 or grid.shape != (2,):
                raise ValueError("a prepared picture in lines has a grid of two int32")
            return parts | {"tile_grid": grid}
        return parts
    if not isinstance(image, PatchImages):
        return {"pixel_values": np.stack([_numbers(tile, image.pixels) for tile in pixels])}
    if len(pixels) != 1:
        raise ValueError("a prepared picture is one tile here")
    return _patched(pixels, image.pixels, (image.patch, image.merge, image.frames))


def video_inputs(
    video: VideoPreparation, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What transformers' video processor gives for the frames: pixel_values float32 [patches, 3 *
    group * patch * patch] and grid_thw int32 [3], (groups, height, width) in patches; of frames
    that are pictures pixel_values float32 [frames, 3, height, width], or with slices as for
    `inputs`; for a MarkedFrames with pooled and marks, see `overlaps.pooled_frames`. Arrays and
    errors as for it."""
    frames = _bytes(arrays.get(FRAMES), "a prepared video has frames", "frames")
    if isinstance(video, VideoFrames):
        return _patched(frames, video.pixels, (video.patch, video.merge, video.group))
    if isinstance(video, SlicedFrames):
        return _of_parts(video.image, frames, arrays.get(SHAPES))
    made = {"pixel_values": np.stack([_numbers(frame, video.pixels) for frame in frames])}
    if isinstance(video, MarkedFrames):
        if frames.shape[1:3] != (video.image.side, video.image.side):
            raise ValueError(f"a prepared video's frames are squares of {video.image.side}")
        pooled, marks = overlaps.pooled_frames(video.image, len(frames))
        return made | {"pooled": pooled, "marks": marks}
    return made


def _of_parts(
    image: NaflexImages | SlicedImages | DocumentImages | WindowedImages,
    pixels: np.ndarray,
    shapes: np.ndarray | None,
) -> dict[str, np.ndarray]:
    if pixels.shape[1:3] != (image.patch, image.patch):
        raise ValueError(f"a prepared picture's patches have {image.patch} pixels each way")
    if shapes is None or shapes.dtype != np.int32 or shapes.ndim != 2 or shapes.shape[1] != 2:
        raise ValueError("a prepared picture in parts has shapes of int32 [parts, 2]")
    # All patches as one high picture, whose numbers are computed at once.
    high = _numbers(pixels.reshape(1, -1, image.patch, 3)[0], image.pixels)
    patches = high.reshape(3, len(pixels), image.patch, image.patch).transpose(1, 0, 2, 3)
    return {"pixel_values": patches.reshape(len(pixels), -1), "spatial_shapes": shapes}


def _on_sheet(
    image: SheetImages, pixels: np.ndarray, grid: np.ndarray | None
) -> dict[str, np.ndarray]:
    if grid is None or grid.dtype != np.int32 or grid.shape != (2,) or len(pixels) != 1:
        raise ValueError("a prepared picture on a sheet is one, and has a grid of two int32")
    rows, columns = (int(count) for count in grid)
    bars = sheets.bars(image, pixels.shape[1:3], (rows, columns))
    sheet = np.pad(pixels[0], (*bars, (0, 0)), constant_values=sheets.WHITE)
    seen = sheet if isinstance(image, BarredImages) else pixels[0]
    return {
        "pixel_values": _tiles_of_sheet(_numbers(sheet, image.pixels), image.tile),
        "image_size": np.array(seen.shape[:2], np.int32),
        "tile_grid": grid,
    }


def _in_crops(
    image: OverlappingImages, pixels: np.ndarray, grid: np.ndarray | None
) -> dict[str, np.ndarray]:
    if grid is None or grid.dtype != np.int32 or grid.shape != (2,) or grid.min() < 1:
        raise ValueError("a prepared picture in crops has a grid of two int32")
    rows, columns = (int(count) for count in grid)
    if max(rows, columns) > image.most or rows * columns > image.most:
        raise ValueError(f"a prepared picture has up to {image.most} crops")
    if pixels.shape[:3] != (1 + rows * columns, image.side, image.side):
        raise ValueError(f"a prepared picture in crops has squares of {image.side}")
    pooled, marks = overlaps.pooled(image, (rows, columns))
    return {
        "pixel_values": np.stack([_numbers(tile, image.pixels) for tile in pixels]),
        "pooled": pooled,
        "marks": marks,
    }


def _bytes(array: np.ndarray | None, what: str, first: str) -> np.ndarray:
    if array is None or array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        raise ValueError(f"{what} of uint8 [{first}, height, width, 3]")
    if not array.size:
        raise ValueError(what)
    return array


def _numbers(tile: np.ndarray, pixels: Pixels) -> np.ndarray:
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


def _patched(
    frames: np.ndarray, pixels: Pixels, sizes: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """sizes: of a patch, pixels; of a square that is merged, patches; of a group, frames. The last
    frame is repeated until its group is whole."""
    patch, merge, group = sizes
    count, rows, columns = len(frames), frames.shape[1] // patch, frames.shape[2] // patch
    if frames.shape[1] % (patch * merge) or frames.shape[2] % (patch * merge):
        raise ValueError(f"a prepared item's sides must be multiples of {patch * merge}")
    groups = -(-count // group)
    out = np.empty((groups, rows * columns, 3 * group * patch * patch), np.float32)
    for number, patches in enumerate(out):
        shown = [min(number * group + at, count - 1) for at in range(group)]
        values = {at: _numbers(frames[at], pixels) for at in set(shown)}
        patches[:] = _cut(np.stack([values[at] for at in shown]), patch, merge)
    grid = np.array([groups, rows, columns], np.int32)
    return {"pixel_values": out.reshape(groups * rows * columns, -1), "grid_thw": grid}


def _cut(values: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """[patches, channels * frames * patch * patch] of [frames, channels, height, width]: the
    patches that are merged stand next to each other."""
    frames, channels, height, width = values.shape
    side = patch * merge
    blocks = values.reshape(
        frames, channels, height // side, merge, patch, width // side, merge, patch
    )
    blocks = blocks.transpose(2, 5, 3, 6, 1, 0, 4, 7)  # [rows, columns, merge, merge, channels, …]
    return blocks.reshape(-1, channels * frames * patch * patch)


def _tiles_of_sheet(sheet: np.ndarray, tile: int) -> np.ndarray:
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
