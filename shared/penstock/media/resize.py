"""A picture's bytes of colour, resized and cut up.

Does what the family's image processor does in transformers, with Pillow's resampling; tests compare
them bit for bit.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from PIL import Image

from penstock.media import geometry, overlaps, sheets, slices, windows
from penstock.media.geometry import (
    Size,
    best_canvas,
    by_longest_edge,
    by_shortest_edge,
    check_ratio,
    fitted,
    rows_of_patches,
    whole_tiles,
)
from penstock.media.layout import (
    canvas_grid,
    crop_grid,
    document_grid,
    naflex_grid,
    naflex_whole,
    patch_grid,
    patch_size,
    tile_grid,
)
from penstock.media.pixels import GRID, LARGE, PIXELS, SHAPES, SIZE
from penstock.model.image_facts import (
    AnyresImages,
    BarredImages,
    CanvasImages,
    DocumentImages,
    FittedImages,
    FixedImages,
    ImagePreparation,
    NaflexImages,
    OverlappingImages,
    PatchImages,
    Pixels,
    PooledImages,
    RowImages,
    ScannedImages,
    SheetImages,
    SlicedImages,
    TiledImages,
    TwofoldImages,
    WindowedImages,
)


def prepare(image: ImagePreparation, picture: Image.Image) -> dict[str, np.ndarray]:
    """The arrays of a prepared item. picture: RGB, upright. Raises BadShape."""
    match image:
        case FixedImages():
            pixels = _fixed(image, picture)[None]
        case ScannedImages():
            pixels = _scanned(image, picture)
        case PatchImages():
            factor = image.patch * image.merge
            height, width = patch_grid(image, _size(picture))
            whole = height * factor, width * factor
            inner = patch_size(image, _size(picture)) if image.most_side else whole
            pixels = _filled(_resized(picture, inner, image.pixels), whole)[None]
        case TiledImages():
            pixels = _tiled(image, picture)
        case CanvasImages():
            pixels = _canvas(image, picture)
        case FittedImages():
            pixels = _fitted(image, picture)
        case RowImages():
            rows, columns = rows_of_patches(_size(picture), image.longest_edge, image.patch)
            size = rows * image.patch, columns * image.patch
            pixels = _resized(picture, size, image.pixels)[None]
        case PooledImages():
            size = geometry.whole_squares(_size(picture), image.square, image.most)
            pixels = _resized(picture, size, image.pixels)[None]
        case NaflexImages():
            return _naflex(image, picture)
        case SlicedImages():
            return _sliced(image, picture)
        case DocumentImages():
            return _document(image, picture)
        case WindowedImages():
            return _windowed(image, picture)
        case OverlappingImages():
            return _overlapping(image, picture)
        case TwofoldImages():
            return _twofold(image, picture)
        case SheetImages():
            shown = _on_sheet(image, picture)
            form = np.array(sheets.grid(image, _size(picture)), np.int32)
            return {PIXELS: shown[None], GRID: form}
        case AnyresImages():
            size = _size(picture)
            return {PIXELS: _anyres(image, picture), SIZE: np.array(size, np.int32)}
    return {PIXELS: pixels}


def _size(picture: Image.Image) -> Size:
    return picture.height, picture.width


def _resized(picture: Image.Image, size: Size, pixels: Pixels) -> np.ndarray:
    """uint8 [height, width, 3]."""
    height, width = size
    return np.asarray(picture.resize((width, height), resample=Image.Resampling(pixels.resample)))


def _filled(pixels: np.ndarray, size: Size) -> np.ndarray:
    """Black is added at the right and below."""
    below, right = (whole - has for whole, has in zip(size, pixels.shape, strict=False))
    return np.pad(pixels, ((0, below), (0, right), (0, 0))) if below or right else pixels


def _fixed(image: FixedImages, picture: Image.Image) -> np.ndarray:
    target = image.height, image.width
    if image.fitted:
        down = image.fitted_down
        inner = _within_square(picture, image.height, image.fitted, image.pixels, down=down)
        return np.asarray(_square(inner, _background(image.pixels)))
    if image.squared:
        picture = _square(picture, _background(image.pixels))
    size = image.resized if all(image.resized) else target
    if image.shortest_edge:
        size = by_shortest_edge(_size(picture), image.shortest_edge)
    return _middle(_resized(picture, size, image.pixels), target)


def _scanned(image: ScannedImages, picture: Image.Image) -> np.ndarray:
    """The whole, then its crops."""
    shown, (rows, columns) = [picture], crop_grid(image, _size(picture))
    if rows:
        width, height = -(-picture.width // columns), -(-picture.height // rows)
        corners = product(range(0, rows * height, height), range(0, columns * width, width))
        for top, left in corners:
            ends = min(left + width, picture.width), min(top + height, picture.height)
            shown.append(picture.crop((left, top, *ends)))
    return np.stack([_resized(each, (image.height, image.width), image.pixels) for each in shown])


def _twofold(image: TwofoldImages, picture: Image.Image) -> dict[str, np.ndarray]:
    inner = _within_square(picture, image.large, image.least, image.large_pixels)
    large = _square(inner, image.background)
    small = _resized(large, (image.side, image.side), image.pixels)
    return {PIXELS: small[None], LARGE: np.asarray(large)[None]}


def _within_square(
    picture: Image.Image, side: int, least: int, pixels: Pixels, *, down: bool = False
) -> Image.Image:
    """The picture, resized to fill a square one way. least: pixels of its shorter side.  down:
    whether its sides are rounded down."""
    longest = max(picture.size)
    scale = side / longest
    exact = [length / longest * side if down else length * scale for length in _size(picture)]
    high, wide = (max(int(each) if down else round(each), least) for each in exact)
    return Image.fromarray(_resized(picture, (high, wide), pixels))


def _background(pixels: Pixels) -> tuple[int, ...]:
    """The colour of the mean."""
    return tuple(int(part * 255) for part in pixels.mean or (0.0, 0.0, 0.0))


def _square(picture: Image.Image, background: tuple[int, ...]) -> Image.Image:
    check_ratio(_size(picture))
    side = max(picture.size)
    square = Image.new("RGB", (side, side), background)
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square


def _middle(pixels: np.ndarray, size: Size) -> np.ndarray:
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


def _tiled(image: TiledImages, picture: Image.Image) -> np.ndarray:
    """The tiles by rows, then the whole."""
    side = image.tile
    resized = _resized(picture, by_longest_edge(_size(picture), image.longest_edge), image.pixels)
    if image.split:
        size = whole_tiles((resized.shape[0], resized.shape[1]), side)
        resized = _resized(Image.fromarray(resized), size, image.pixels)
    whole = _resized(Image.fromarray(resized), (side, side), image.pixels)
    rows, columns = tile_grid(image, _size(picture))
    if not rows and image.split:
        whole = resized
    cut = _cut(resized[: rows * side, : columns * side], side)
    return np.concatenate([cut, whole[None]])


def _canvas(image: CanvasImages, picture: Image.Image) -> np.ndarray:
    """The tiles by rows, then the whole."""
    rows, columns = canvas_grid(image, _size(picture))
    side = image.tile
    filled = _cut(_resized(picture, (rows * side, columns * side), image.pixels), side)
    if rows * columns == 1:
        return filled
    return np.concatenate([filled, _resized(picture, (side, side), image.pixels)[None]])


def _fitted(image: FittedImages, picture: Image.Image) -> np.ndarray:
    """The tiles by rows, then the whole. What is on one tile isn't shown twice."""
    side = image.tile
    canvas = best_canvas(_size(picture), side, image.most)
    inner = _resized(picture, fitted(_size(picture), canvas, side), image.pixels)
    below, right = (whole - has for whole, has in zip(canvas, inner.shape, strict=False))
    tiles = _cut(np.pad(inner, ((0, below), (0, right), (0, 0))), side)
    if len(tiles) == 1:
        return tiles
    return np.concatenate([tiles, _resized(picture, (side, side), image.pixels)[None]])


def _anyres(image: AnyresImages, picture: Image.Image) -> np.ndarray:
    """The whole, then the tiles by rows."""
    side = image.tile
    form = geometry.best_form(_size(picture), image.forms)
    inner = _resized(picture, geometry.within_form(_size(picture), form), image.pixels)
    missing = [whole - has for whole, has in zip(form, inner.shape, strict=False)]
    bars = [(each // 2, each - each // 2) for each in missing]
    filled = np.pad(inner, (*bars, (0, 0)))
    whole = _resized(picture, (side, side), image.pixels)
    return np.concatenate([whole[None], _cut(filled, side)])


def _naflex(image: NaflexImages, picture: Image.Image) -> dict[str, np.ndarray]:
    """The patches of the tiles, by rows, then of the whole, whose size must be possible even where
    it isn't shown."""
    size, side = _size(picture), image.tile
    rows, columns = naflex_grid(image, size)
    whole = naflex_whole(image, size)
    parts: list[np.ndarray] = []
    if rows:
        parts += [*_cut(_resized(picture, (rows * side, columns * side), image.pixels), side)]
    if image.whole or not rows:
        parts.append(_resized(picture, whole, image.pixels))
    return _in_patches(parts, image.patch)


def _sliced(image: SlicedImages, picture: Image.Image) -> dict[str, np.ndarray]:
    """The patches of the whole, then of its slices, by rows."""
    size = _size(picture)
    parts = [_resized(picture, slices.whole_size(image, size), image.pixels)]
    rows, columns = slices.grid(image, size)
    if rows:
        high, wide = slices.slice_size(image, size)
        parts += [*_cut(_resized(picture, (rows * high, columns * wide), image.pixels), high, wide)]
    return _in_patches(parts, image.patch)


def _windowed(image: WindowedImages, picture: Image.Image) -> dict[str, np.ndarray]:
    """The patches of the windows, by rows, then of the whole."""
    found = windows.windows(image, _size(picture))
    if found.squared:
        square = Image.new("RGB", (max(picture.size), max(picture.size)))
        square.paste(picture)
        picture = square
    parts: list[np.ndarray] = []
    if found.side:
        cut = Image.fromarray(_resized(picture, found.cut, image.pixels))
        high, wide = (min(found.side, length) for length in found.cut)
        corners = product(range(0, found.cut[0], high), range(0, found.cut[1], wide))
        for top, left in corners:
            window = cut.crop((left, top, left + wide, top + high))
            parts.append(_resized(window, (image.tile, image.tile), image.pixels))
    smaller = Image.fromarray(_resized(picture, found.size, image.pixels))
    parts.append(_resized(smaller, (image.whole, image.whole), image.pixels))
    return _in_patches(parts, image.patch)


def _overlapping(image: OverlappingImages, picture: Image.Image) -> dict[str, np.ndarray]:
    """The whole, then its crops, by rows."""
    crops, given = overlaps.form(image, _size(picture)), np.asarray(picture)
    whole = overlaps.resized(given, (image.side, image.side))
    shown = overlaps.resized(given, overlaps.cut_size(image, crops))
    tiles = np.stack([whole, *overlaps.cut(image, shown, crops)])
    return {PIXELS: tiles, GRID: np.array(crops, np.int32)}


def _on_sheet(image: SheetImages, picture: Image.Image) -> np.ndarray:
    """The picture without the white around it. Phi-3-vision resizes a high one as if it lay on its
    side, by which some bytes differ."""
    size = sheets.inner(image, _size(picture))
    if not isinstance(image, BarredImages) or picture.width >= picture.height:
        return _resized(picture, size, image.pixels)
    lying = _resized(picture.transpose(Image.Transpose.TRANSPOSE), size[::-1], image.pixels)
    return np.ascontiguousarray(lying.transpose(1, 0, 2))


def _document(image: DocumentImages, picture: Image.Image) -> dict[str, np.ndarray]:
    """The patches of the tiles, by rows, then of the page."""
    size, side = _size(picture), image.tile
    rows, columns = document_grid(image, size)
    parts: list[np.ndarray] = []
    if rows:
        parts += [*_cut(_resized(picture, (rows * side, columns * side), image.pixels), side)]
    inner = _resized(picture, _within_page(image, size), image.pixels)
    page = np.empty((image.page, image.page, 3), np.uint8)
    page[:] = image.background
    bars = (image.page - has for has in inner.shape[:2])
    top, left = (round(each * 0.5) if image.lines else each // 2 for each in bars)
    page[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
    made = _in_patches([*parts, page], image.patch)
    return made | {GRID: np.array([rows, columns], np.int32)} if image.lines else made


def _within_page(image: DocumentImages, size: Size) -> Size:
    """The picture's size when it is resized, in proportion, to fill a page one way: as Pillow has
    it, and as transformers."""
    height, width = size
    if not image.lines:
        scale = image.page / max(size)
        height, width = round(height * scale), round(width * scale)
    elif width > height:
        height, width = round(height / width * image.page), image.page
    else:
        height, width = image.page, round(width / height * image.page)
    # A picture that is too long for even one pixel the other way, where theirs fail.
    return max(height, 1), max(width, 1)


def _in_patches(parts: list[np.ndarray], patch: int) -> dict[str, np.ndarray]:
    shapes = [(len(part) // patch, part.shape[1] // patch) for part in parts]
    patches = np.concatenate([_cut(part, patch) for part in parts])
    return {PIXELS: patches, SHAPES: np.array(shapes, np.int32)}


def _cut(pixels: np.ndarray, high: int, wide: int = 0) -> np.ndarray:
    """Cuts [height, width, 3] into [tiles, high, wide, 3], by rows. wide: 0: as high."""
    wide = wide or high
    rows, columns = pixels.shape[0] // high, pixels.shape[1] // wide
    apart = pixels.reshape(rows, high, columns, wide, 3)
    return apart.transpose(0, 2, 1, 3, 4).reshape(-1, high, wide, 3)
