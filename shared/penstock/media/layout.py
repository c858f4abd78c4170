"""How an item of media stands in a prompt: rows of embeddings, and the text around them."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt, prod
from typing import NamedTuple

from penstock.media import geometry, slices
from penstock.media.geometry import (
    BadShape,
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
from penstock.model.audio_spec import rows_of
from penstock.model.media_facts import (
    AnyresImages,
    BlockMel,
    CanvasImages,
    DocumentImages,
    EmphasisedMel,
    FittedImages,
    FixedFrames,
    FixedImages,
    FrameMel,
    LogMel,
    MediaFacts,
    MediaKind,
    NaflexImages,
    PairedMel,
    PatchImages,
    PooledImages,
    Preparation,
    RowImages,
    ScannedImages,
    SlicedImages,
    TiledImages,
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
    of tiles, (0, 0) if it isn't cut; `video_grid`'s; nothing where positions just count."""

    kind: MediaKind
    runs: tuple[ItemRun, ...]
    behind: str
    grid: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Embeddings in all."""
        return sum(run.rows for run in self.runs)


class _Runs(NamedTuple):
    """Runs of an item, without what all of its kind have around them."""

    runs: tuple[ItemRun, ...]
    behind: str = ""
    grid: tuple[int, ...] = ()


def layout(facts: MediaFacts, kind: MediaKind, shape: tuple[int, ...]) -> ItemLayout:
    """shape: of the item, as its process said: (height, width) in pixels of an upright picture,
    (samples,) of a sound, VideoShape of a video. Raises BadShape or BadLength."""
    own = facts.kinds[kind]
    made = _runs(own.preparation, shape)
    runs = tuple(
        ItemRun(run.text if number else own.before + run.text, run.rows)
        for number, run in enumerate(made.runs)
    )
    return ItemLayout(kind, runs, made.behind + own.behind, made.grid)


def _runs(preparation: Preparation, shape: tuple[int, ...]) -> _Runs:
    match preparation:
        case LogMel() | FrameMel() | EmphasisedMel() | PairedMel():
            return _Runs((ItemRun("", sound_rows(preparation, *shape)),))
        case BlockMel():
            return _Runs((ItemRun("", preparation.rows(*shape)),))
        case VideoFrames():
            return _of_frames(preparation, VideoShape.of(shape))
        case FixedFrames():
            shown = VideoShape.of(shape).shown
            return _Runs((ItemRun("", shown * preparation.rows + 1),))
        case FixedImages():
            return _Runs((ItemRun("", preparation.rows),))
        case ScannedImages():
            return _of_crops(preparation, _size(shape))
        case PatchImages():
            rows, columns = patch_grid(preparation, _size(shape))
            return _Runs((ItemRun("", rows * columns),), grid=(1, rows, columns))
        case TiledImages():
            return _of_tiles(preparation, _size(shape))
        case CanvasImages():
            rows, columns = canvas_grid(preparation, _size(shape))
            count = tiles_of_canvas(rows, columns)
            return _Runs((ItemRun("", count * preparation.rows),), grid=(rows, columns))
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
    begin, end = video.stamped
    if not begin:
        return _Runs((ItemRun("", prod(grid[:3])),), grid=grid)
    runs = [
        ItemRun(f"{end if number else ''}<{time:.1f} seconds>{begin}", grid[1] * grid[2])
        for number, time in enumerate(times_of(video, shape))
    ]
    return _Runs(tuple(runs), end, grid)


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


def canvas_grid(image: CanvasImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles."""
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


# How a video stands in a prompt: sizes of its frames, its grid, and its positions in time.

MAX_TERM = 1_000_000
"""Largest numerator and denominator of a fraction, as far as a rate goes."""


class VideoShape(NamedTuple):
    """What a video's rows and positions depend on.

    height, width: of its upright frames, pixels.  total: frames that it has.  rate: frames per
    second.  numbers: of the frames that are shown, of these, ascending.
    """

    height: int
    width: int
    total: int
    rate: Fraction
    numbers: tuple[int, ...]

    @property
    def shown(self) -> int:
        """How many frames."""
        return len(self.numbers)

    def flat(self) -> tuple[int, ...]:
        """The shape as whole numbers, as Answer.shape has it."""
        rate = self.rate.limit_denominator(MAX_TERM)
        sizes = self.height, self.width, self.total, rate.numerator, rate.denominator
        return *sizes, *self.numbers

    @staticmethod
    def of(shape: tuple[int, ...]) -> VideoShape:
        height, width, total, above, below, *numbers = shape
        return VideoShape(height, width, total, Fraction(above, below), tuple(numbers))


def frame_size(video: VideoPreparation, size: Size, shown: int) -> Size:
    """Height and width of a resized frame, pixels. shown: frames. Raises BadShape."""
    if isinstance(video, FixedFrames):
        return video.height, video.width
    most, factor = video.max_pixels, video.patch * video.merge
    if video.of_all:
        if video.all_pixels:
            each = max(min(video.all_pixels, most // shown), int(video.min_pixels * 1.05))
            most = each * shown
        return whole_volume(size, shown, factor, video.group, video.min_pixels, most)
    if video.all_pixels:
        most = max(min(most, video.all_pixels // shown), int(video.min_pixels * 1.05))
    return whole_patches(size, factor, video.min_pixels, most)


def groups_of(video: VideoFrames, shown: int) -> int:
    """The last frame is repeated where they don't fill the last group."""
    return -(-shown // video.group)


def video_grid(video: VideoPreparation, shape: VideoShape) -> tuple[int, ...]:
    """MediaItem.grid: groups, rows and columns of merged patches; then, where time has a scale, the
    numerator and the denominator of what lies between the positions of two groups; nothing where
    positions just count. Raises BadShape."""
    if isinstance(video, FixedFrames):
        return ()
    height, width = frame_size(video, (shape.height, shape.width), shape.shown)
    side = video.patch * video.merge
    grid = groups_of(video, shape.shown), height // side, width // side
    if not video.positions_per_second:
        return grid
    plane = grid[1] * grid[2]
    step = (
        Fraction(video.positions_per_second)
        * video.group
        * Fraction(shape.total, shape.shown)
        / shape.rate
    ).limit_denominator(MAX_TERM)
    if step > plane:
        seconds = float(step) / video.positions_per_second
        raise BadShape(
            f"its frames lie {seconds:.0f} s apart, and one of them has {plane} tokens; the model "
            f"tells times apart up to {plane / video.positions_per_second:.0f} s; show more frames "
            "(num_frames) or larger ones (min_pixels)"
        )
    return *grid, step.numerator, step.denominator


def times_of(video: VideoFrames, shape: VideoShape) -> list[float]:
    """Time of each group, seconds: the middle of its first and its last frame's."""
    rate, last = float(shape.rate), shape.shown - 1
    seconds = [number / rate for number in shape.numbers]
    return [
        (seconds[first] + seconds[min(first + video.group - 1, last)]) / 2
        for first in range(0, shape.shown, video.group)
    ]


# How many chunks, windows and embeddings a sound has: pure arithmetic.
#
# The rules are those of transformers' Whisper, Qwen2-Audio and Voxtral: two convolutions of three
# windows each, the second of which goes two windows at a time.

MIN_RATE, MAX_RATE = 1_000, 384_000
"""Hz, of what is read."""


class BadLength(ValueError):
    """A sound is too short or too long; says what is allowed, to follow "the sound"."""


def chunks_of(mel: LogMel, samples: int) -> int:
    """How many chunks a sound is filled up to. Raises BadLength."""
    if samples < 1:
        raise BadLength("has no samples")
    chunks = -(-samples // mel.chunk_samples)
    if chunks > 1 and not mel.many:
        raise BadLength(
            f"lasts {samples / mel.sampling_rate:.1f} s; this model hears {mel.seconds} s at most"
        )
    return chunks


def convolved(mel: LogMel, samples: int) -> int:
    """Outputs of the second convolution, for a sound of one chunk, that aren't silence that was
    added."""
    windows = -(-samples // mel.hop)
    return (windows + 1) // 2


def frames_of(mel: LogMel, samples: int) -> int:
    """How many windows of a chunk the encoder needs. Raises BadLength."""
    if chunks_of(mel, samples) > 1 or not mel.cut:
        return mel.chunk_frames
    # The last output that is taken reads one window after its two.
    return min(2 * convolved(mel, samples) + 1, mel.chunk_frames)


def windows_of(mel: FrameMel, samples: int) -> int:
    """Windows that end within the sound; the first begins half a window before it. Raises
    BadLength."""
    least = mel.frame - mel.frame // 2 + 1
    if samples < least:
        raise BadLength(
            f"has {samples} samples at {mel.sampling_rate} Hz; this model hears {least} at least"
        )
    _check_longest(mel, samples)
    return -(-(samples - least + 1) // mel.hop)


def emphasised_windows(mel: EmphasisedMel, samples: int) -> int:
    """Windows of a sound of so many samples. Raises BadLength."""
    check_shortest(mel, samples)
    _check_longest(mel, samples)
    return mel.frames(samples)


def _check_longest(mel: FrameMel | EmphasisedMel, samples: int) -> None:
    if samples > mel.seconds * mel.sampling_rate:
        raise BadLength(
            f"lasts {samples / mel.sampling_rate:.1f} s; this model hears {mel.seconds} s at most"
        )


def check_shortest(mel: PairedMel | EmphasisedMel, samples: int) -> None:
    """Raises BadLength."""
    if samples < mel.least:
        raise BadLength(
            f"has {samples} samples at {mel.sampling_rate} Hz; this model hears {mel.least} at"
            " least"
        )


def sound_rows(mel: LogMel | FrameMel | EmphasisedMel | PairedMel, samples: int) -> int:
    """Embeddings of a sound of so many samples, at the model's rate. Raises BadLength."""
    if isinstance(mel, FrameMel):
        return rows_of(windows_of(mel, samples))
    if isinstance(mel, EmphasisedMel):
        emphasised_windows(mel, samples)
        return mel.rows
    if isinstance(mel, PairedMel):
        check_shortest(mel, samples)
        return mel.rows(samples)
    chunks = chunks_of(mel, samples)
    if not mel.cut:
        return chunks * (mel.chunk_frames // mel.row_frames)
    rows = convolved(mel, samples) * 2 // mel.row_frames
    if not rows:
        least = (mel.row_frames // 2 - 1) * 2 * mel.hop + 1
        raise BadLength(
            f"has {samples} samples at {mel.sampling_rate} Hz; this model hears {least} at least"
        )
    return rows
