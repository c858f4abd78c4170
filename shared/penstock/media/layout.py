"""How an item of media stands in a prompt: rows of embeddings, and the text around them."""

from __future__ import annotations

from math import isqrt, prod
from typing import NamedTuple

from penstock.media import geometry, sheets, slices, windows
from penstock.media.geometry import (
    Size,
    best_canvas,
    by_longest_edge,
    canvas,
    crops,
    rows_of_patches,
    tiles,
    whole_patches,
    whole_tiles,
    whole_volume,
)
from penstock.media.sound_layout import sound_rows
from penstock.media.video_layout import VideoShape, frame_size, group_texts, video_grid
from penstock.model.image_facts import (
    AnyresImages,
    CanvasImages,
    DocumentImages,
    FittedImages,
    FixedImages,
    NaflexImages,
    OverlappingImages,
    PatchImages,
    PooledImages,
    RowImages,
    ScannedImages,
    SheetImages,
    SlicedImages,
    TiledImages,
    TwofoldImages,
    WindowedImages,
)
from penstock.model.media_facts import MediaFacts, MediaKind, Preparation
from penstock.model.sound_facts import (
    BlockMel,
    EmphasisedMel,
    FrameMel,
    HammingMel,
    LogMel,
    PairedMel,
    Waveform,
)
from penstock.model.video_facts import (
    FixedFrames,
    GroupTexts,
    MarkedFrames,
    PooledFrames,
    SlicedFrames,
    VideoFrames,
    VideoPreparation,
)


class ItemRun(NamedTuple):
    """Text, then so many embeddings."""

    text: str
    rows: int


class ItemLayout(NamedTuple):
    """kind: of media.  runs: one after the other, then `behind`.  grid: what positions depend on:
    (1, height, width) in embeddings of a picture that is cut into merged patches; (rows, columns)
    of tiles, (0, 0) if it isn't cut; `video_grid`'s; nothing where positions just count.  marked:
    places of embeddings, counted through all runs, that have other tokens than the rest, and
    these."""

    kind: MediaKind
    runs: tuple[ItemRun, ...]
    behind: str
    grid: tuple[int, ...]
    marked: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """Embeddings in all."""
        return sum(run.rows for run in self.runs)


class _Runs(NamedTuple):
    """Runs of an item, without what all of its kind have around them."""

    runs: tuple[ItemRun, ...]
    behind: str = ""
    grid: tuple[int, ...] = ()
    marked: tuple[tuple[int, int], ...] = ()


def layout(facts: MediaFacts, kind: MediaKind, shape: tuple[int, ...]) -> ItemLayout:
    """shape: of the item, as its process said: (height, width) in pixels of an upright picture,
    (samples,) of a sound, VideoShape of a video. Raises BadShape or BadLength."""
    own = facts.kinds[kind]
    made = _runs(own.preparation, shape)
    runs = tuple(
        ItemRun(run.text if number else own.before + run.text, run.rows)
        for number, run in enumerate(made.runs)
    )
    return ItemLayout(kind, runs, made.behind + own.behind, made.grid, made.marked)


def _runs(preparation: Preparation, shape: tuple[int, ...]) -> _Runs:
    match preparation:
        case LogMel() | FrameMel() | EmphasisedMel() | PairedMel() | HammingMel() | Waveform():
            return _Runs((ItemRun("", sound_rows(preparation, *shape)),))
        case BlockMel():
            return _Runs((ItemRun("", preparation.rows(*shape)),))
        case VideoFrames():
            return _of_frames(preparation, VideoShape.of(shape))
        case FixedFrames():
            return _of_fixed(preparation, VideoShape.of(shape))
        case PooledFrames():
            return _of_pooled(preparation, VideoShape.of(shape))
        case MarkedFrames():
            return _of_marked(preparation, VideoShape.of(shape))
        case SlicedFrames():
            return _of_sliced(preparation, VideoShape.of(shape))
        case FixedImages() | TwofoldImages():
            return _Runs((ItemRun("", preparation.rows),))
        case ScannedImages():
            return _of_crops(preparation, _size(shape))
        case PatchImages():
            rows, columns = patch_grid(preparation, _size(shape))
            return _Runs((ItemRun("", rows * columns),), grid=(1, rows, columns))
        case TiledImages():
            return _of_tiles(preparation, _size(shape))
        case CanvasImages():
            return _of_canvas(preparation, canvas_grid(preparation, _size(shape)))
        case FittedImages():
            return _of_fitted(preparation, _size(shape))
        case RowImages():
            return _of_rows(preparation, _size(shape))
        case PooledImages():
            side = preparation.square
            height, width = geometry.whole_squares(_size(shape), side, preparation.most)
            return _Runs((ItemRun("", height // side * (width // side)),))
        case NaflexImages():
            return _of_naflex(preparation, _size(shape))
        case SlicedImages():
            return _of_slices(preparation, _size(shape))
        case DocumentImages():
            rows, columns = document_grid(preparation, _size(shape))
            count = document_rows(preparation, rows, columns)
            return _Runs((ItemRun("", count),), grid=(rows, columns))
        case SheetImages():
            return _Runs((ItemRun("", sheets.embeddings(preparation, _size(shape))),))
        case WindowedImages():
            found, behind = windows.runs(preparation, _size(shape))
            grid = windows.windows(preparation, _size(shape)).grid
            return _Runs(tuple(ItemRun(*each) for each in found), behind, grid)
        case OverlappingImages():
            from penstock.media import overlaps  # numpy, which no gateway needs otherwise.

            crops = overlaps.form(preparation, _size(shape))
            run = ItemRun("", overlaps.embeddings(preparation, crops))
            return _Runs((run,), grid=crops, marked=overlaps.marked(preparation, crops))
        case AnyresImages():
            return _Runs((ItemRun("", _rows_of_anyres(preparation, _size(shape))),))


def _size(shape: tuple[int, ...]) -> Size:
    height, width = shape
    return height, width


def _of_tiles(image: TiledImages, size: Size) -> _Runs:
    height, width = tile_grid(image, size)
    runs = [
        ItemRun(f"{newline}{image.around}<row_{row + 1}_col_{column + 1}>", image.rows)
        for row in range(height)
        for column, newline in _columns(width, first_row=not row)
    ]
    newlines = "\n\n" if runs else ""
    runs.append(ItemRun(f"{newlines}{image.around}{image.whole}", image.rows))
    return _Runs(tuple(runs), image.around, (height, width))


def _of_fitted(image: FittedImages, size: Size) -> _Runs:
    rows, columns = fitted_grid(image, size)
    runs = []
    if rows * columns > 1:
        runs = [ItemRun("", image.rows)]
        for number in range(1, rows * columns):
            runs.append(ItemRun(image.tile_end if number % columns else image.row_end, image.rows))
    runs.append(ItemRun(f"{image.row_end if runs else ''}{image.whole}", image.rows))
    return _Runs(tuple(runs), grid=(rows, columns))


def _of_frames(video: VideoFrames, shape: VideoShape) -> _Runs:
    grid = video_grid(video, shape)
    if video.texts is None:
        return _Runs((ItemRun("", prod(grid[:3])),), grid=grid)
    return _of_groups(video, video.texts, shape, grid[1] * grid[2])._replace(grid=grid)


def _of_fixed(video: FixedFrames, shape: VideoShape) -> _Runs:
    if video.texts is None:
        return _Runs((ItemRun("", shape.shown * video.rows + 1),))
    return _of_groups(video, video.texts, shape, video.rows)


def _of_pooled(video: PooledFrames, shape: VideoShape) -> _Runs:
    height, width = frame_size(video, (shape.height, shape.width), shape.shown)
    rows = height // video.square * (width // video.square)
    return _of_groups(video, video.texts, shape, rows)


def _of_groups(video: VideoPreparation, texts: GroupTexts, shape: VideoShape, rows: int) -> _Runs:
    """rows: embeddings of a group of frames."""
    runs, end = [], ""
    for before, behind in group_texts(video, texts, shape):
        runs.append(ItemRun(end + before, rows))
        end = behind
    return _Runs(tuple(runs), end)


def _of_marked(video: MarkedFrames, shape: VideoShape) -> _Runs:
    from penstock.media import overlaps  # as for pictures

    runs = _of_groups(video, video.texts, shape, overlaps.frame_embeddings(video.image))
    return runs._replace(marked=overlaps.marked_frames(video.image, shape.shown))


def _of_sliced(video: SlicedFrames, shape: VideoShape) -> _Runs:
    found, end = slices.runs(video.image, (shape.height, shape.width))
    runs, behind = [], ""
    for _ in range(shape.shown):
        first, *others = found
        runs += [ItemRun(behind + first[0], first[1]), *(ItemRun(*other) for other in others)]
        behind = end
    return _Runs(tuple(runs), behind)


def _of_crops(image: ScannedImages, size: Size) -> _Runs:
    rows, columns = crop_grid(image, size)
    if not rows:
        return _Runs((ItemRun(image.begin, image.rows),), image.end)
    runs = [ItemRun(f"Here is the original image {image.begin}", image.rows)]
    between = " and here are some crops to help you see better "
    for _ in range(rows * columns):
        runs.append(ItemRun(f"{image.end}{between}{image.begin}", image.rows))
        between = " "
    return _Runs(tuple(runs), image.end)


def crop_grid(image: ScannedImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of crops; (0, 0): the picture alone."""
    return crops(size, image.most, image.least, image.ratio) if image.scan else (0, 0)


def _of_rows(image: RowImages, size: Size) -> _Runs:
    rows, columns = rows_of_patches(size, image.longest_edge, image.patch)
    if not image.row_end:
        return _Runs((ItemRun("", rows * columns),), image.end)
    runs = [ItemRun(image.row_end if row else "", columns) for row in range(rows)]
    return _Runs(tuple(runs), image.end)


def _of_naflex(image: NaflexImages, size: Size) -> _Runs:
    rows, columns = naflex_grid(image, size)
    height, width = naflex_whole(image, size)
    whole = height // image.square * (width // image.square)
    runs = [
        ItemRun(f"<|img_row_{row + 1}_col_{column + 1}|>", image.tile_rows)
        for row in range(rows)
        for column in range(columns)
    ]
    if image.whole or not runs:
        runs.append(ItemRun("<|img_thumbnail|>" if runs else "", whole))
    return _Runs(tuple(runs), grid=(rows, columns))


def naflex_grid(image: NaflexImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles; (0, 0): the whole alone."""
    most = image.max_rows * image.square**2 * image.large
    if not image.split or not geometry.is_large(size, image.square, image.patch, most):
        return 0, 0
    return canvas(size, image.tile, image.least, image.most)


def naflex_whole(image: NaflexImages, size: Size) -> Size:
    """(height, width) of the whole, in pixels. Raises BadShape."""
    side = image.square
    pixels = [rows * side**2 for rows in (image.min_rows, image.max_rows)]
    return whole_patches(size, side, pixels[0], pixels[1], smallest=side)


def _of_slices(image: SlicedImages, size: Size) -> _Runs:
    runs, end = slices.runs(image, size)
    grid = slices.grid(image, size)
    return _Runs(tuple(ItemRun(text, rows) for text, rows in runs), end, grid)


def _rows_of_anyres(image: AnyresImages, size: Size) -> int:
    shape = geometry.anyres_shape(size, image.forms, image.tile, image.side, image.most)
    return image.side**2 + shape.rows * (shape.columns + 1)


def _of_canvas(image: CanvasImages, grid: tuple[int, int]) -> _Runs:
    count = tiles_of_canvas(*grid)
    if not (image.numbered or image.whole or image.tile_end):
        return _Runs((ItemRun("", count * image.rows),), grid=grid)
    texts = [f"{image.numbered}{number}" for number in range(1, count)] if image.numbered else []
    texts = [*(texts or [""] * (count - 1)), image.whole]
    ends = ["", *[image.tile_end] * (count - 1)]
    runs = (ItemRun(f"{end}{text}", image.rows) for end, text in zip(ends, texts, strict=True))
    return _Runs(tuple(runs), image.tile_end, grid)


def canvas_grid(image: CanvasImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles."""
    if image.split and image.fitting:
        return geometry.fitting_canvas(size, image.tile, image.most)
    return canvas(size, image.tile, image.least, image.most) if image.split else (1, 1)


def document_grid(image: DocumentImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles; (0, 0): the page alone. Raises BadShape."""
    geometry.check_ratio(size)
    return canvas(size, image.tile, image.least, image.most) if max(size) > image.tile else (0, 0)


def document_rows(image: DocumentImages, rows: int, columns: int) -> int:
    """Embeddings of a picture with so many rows and columns of tiles."""
    found = rows * columns * image.tile_rows + image.page_rows + 1
    if not image.lines:
        return found
    return found + rows * isqrt(image.tile_rows) + isqrt(image.page_rows)


def tiles_of_canvas(rows: int, columns: int) -> int:
    """How many tiles a picture becomes: those of the canvas and the whole, which one tile is
    itself."""
    return rows * columns + (rows * columns > 1)


def fitted_grid(image: FittedImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles; (1, 1): the whole alone."""
    height, width = best_canvas(size, image.tile, image.most)
    return height // image.tile, width // image.tile


def _columns(width: int, *, first_row: bool) -> list[tuple[int, str]]:
    """A new row begins on a new line."""
    return [(column, "" if column or first_row else "\n") for column in range(width)]


def patch_grid(image: PatchImages, size: Size) -> tuple[int, int]:
    """(height, width) in merged patches. Raises BadShape."""
    factor = image.patch * image.merge
    if image.most_side:
        height, width = patch_size(image, size)
        return -(-height // factor), -(-width // factor)
    size = geometry.widened(size, factor) if image.widened else size
    least, most = image.min_pixels, image.max_pixels
    if image.of_all:
        height, width = whole_volume(size, image.frames, factor, image.frames, least, most)
    else:
        height, width = whole_patches(size, factor, least, most)
    return height // factor, width // factor


def patch_size(image: PatchImages, size: Size) -> Size:
    """(height, width), in pixels, of a picture of most_side before it is filled up."""
    most = image.max_pixels // image.patch**2
    return geometry.never_larger(size, image.patch, most, image.most_side)


def tile_grid(image: TiledImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles; (0, 0): the whole alone."""
    if not image.split:
        return 0, 0
    resized = whole_tiles(by_longest_edge(size, image.longest_edge), image.tile)
    return tiles(resized, image.tile)
