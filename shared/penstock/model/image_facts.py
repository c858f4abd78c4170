"""What a model's files say of how pictures are prepared: a struct for each form of preparation."""

from __future__ import annotations

import msgspec

Colour = tuple[float, float, float]


class Pixels(msgspec.Struct, frozen=True, kw_only=True):
    """How bytes become numbers: value * rescale, then (value - mean) / std, of red, green, blue."""

    resample: int
    """Pillow's number of a filter: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box."""
    rescale: float | None = None
    mean: Colour | None = None
    std: Colour | None = None
    """Divisor after `mean` is subtracted. None for mean and std: values stay as they are."""
    rounded: bool = False
    """Whether each step's result is rounded to bfloat16 (Llama 4)."""


class FixedImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fixed"):
    """One size for all: CLIP's and SigLIP's preparation, which LLaVA 1.5 and Gemma 3 have.

    shortest_edge: pictures are resized, in proportion, to it; 0: to height × width.
    height, width: of what the tower gets; where it differs from the resized picture, its middle is
    cut out, or it is surrounded by zeros.  rows: embeddings of a picture.
    """

    pixels: Pixels
    height: int
    width: int
    rows: int
    shortest_edge: int = 0
    resized: tuple[int, int] = (0, 0)
    """Height and width that a picture is resized to before its middle is cut out, without
    shortest_edge; zeros: to height and width."""
    squared: bool = False
    """Whether a picture is made square first, with bars in the colour of the mean."""
    fitted: int = 0
    """Pixels that a side has at least, of a picture that is resized, in proportion, to fill a
    square one way, with bars in the colour of the mean the other (DeepSeek-VL, Janus); 0: it
    isn't."""
    fitted_down: bool = False
    """Whether the sides of such a picture are rounded down (Janus's makers), and not to the
    nearest."""


class TwofoldImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="deepseek_vl"):
    """DeepSeek-VL 7B's: a picture lies, in its proportions, in the middle of a large square, which
    one tower sees, and the other one made smaller.

    pixels: of the smaller square.  large_pixels: of the large one.  side, large: of either, pixels.
    least: of the shorter side of a picture in the large square, pixels.  rows: embeddings.
    """

    pixels: Pixels
    large_pixels: Pixels
    side: int
    large: int
    least: int
    rows: int
    background: tuple[int, int, int]
    """Colour of the bars."""


class ScannedImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gemma3"):
    """Gemma 3's: one size for all. With pan and scan, crops of a picture that is long or high
    follow it.

    height, width: of what the tower gets.  rows: embeddings of a picture, and of a crop.  scan:
    whether there are crops.  most: crops of a picture.  least: pixels of a crop's shorter side, at
    least.  ratio: of a picture's sides, from which on it is cropped.
    """

    pixels: Pixels
    height: int
    width: int
    rows: int
    begin: str
    end: str
    """Around the embeddings of a picture, and of a crop."""
    scan: bool = False
    most: int = 4
    least: int = 256
    ratio: float = 1.2


class TiledImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="idefics3"):
    """Idefics 3's and SmolVLM's: a picture is resized, cut into square tiles, and followed by the
    whole of it as one tile.

    longest_edge: that a picture is resized to.  tile: side of a tile, pixels.  split: whether there
    are tiles but the whole.  rows: embeddings of a tile.
    """

    pixels: Pixels
    longest_edge: int
    tile: int
    rows: int
    split: bool = True
    around: str = "<fake_token_around_image>"
    """Begins a tile, and ends the picture."""
    whole: str = "<global-img>"


class PatchImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="qwen2_vl"):
    """Qwen2-VL's and its successors': any size, rounded to whole merged patches.

    min_pixels, max_pixels: that a resized picture has.  patch: side, pixels.  merge: patches, each
    way, that become one embedding.  frames: of which a patch consists; a picture is repeated.
    """

    pixels: Pixels
    min_pixels: int
    max_pixels: int
    patch: int
    merge: int
    frames: int = 2
    widened: bool = False
    """Whether a picture with a side of less than a merged patch is enlarged first until it has one
    (PaddleOCR-VL)."""
    of_all: bool = False
    """Whether the bounds are of the repeated pictures together, and a picture with a short side is
    enlarged first (GLM-4.1V)."""
    most_side: int = 0
    """Patches that a side has at most, of pictures that keep their proportions and are never
    enlarged: what is missing at the right and below of whole merged patches is black (Kimi K2.5).
    0: sides are rounded."""


class CanvasImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="internvl"):
    """InternVL's: a picture fills a canvas of square tiles, whose form is the nearest to its own,
    and is followed by the whole of it as one tile.

    tile: side, pixels.  rows: embeddings of a tile.  least, most: tiles of a canvas.  split:
    whether there is a canvas.
    """

    pixels: Pixels
    tile: int
    rows: int
    least: int = 1
    most: int = 12
    split: bool = True
    fitting: bool = False
    """Whether the form is the one that enlarges the picture least, in proportion, or, where all are
    smaller than it, shrinks it least, and not the nearest to its own (Command A Vision)."""
    numbered: str = ""
    """Text before each tile of a canvas, with its number from 1 on behind it (Aya Vision)."""
    whole: str = ""
    """Text before the whole."""
    tile_end: str = ""
    """Text behind each tile, and behind the whole. Without any of these texts, all embeddings are
    of one run."""


class FittedImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="llama4"):
    """Llama 4's: a picture lies, in its proportions, at the top left of a black canvas of square
    tiles, and is followed by the whole of it as one tile.

    tile: side, pixels.  rows: embeddings of a tile.  most: tiles of a canvas.
    """

    pixels: Pixels
    tile: int
    rows: int
    most: int = 16
    tile_end: str = "<|tile_x_separator|>"
    """Text between the tiles of a row."""
    row_end: str = "<|tile_y_separator|>"
    whole: str = "<|image|>"
    """Begins the whole."""


class RowImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pixtral"):
    """Pixtral's: any size in whole patches, no larger than a square; a token ends each row of
    embeddings, but for LightOnOCR's.

    longest_edge: side of the square, pixels.  patch: of pixels, each way, that become one
    embedding.
    """

    pixels: Pixels
    longest_edge: int
    patch: int
    row_end: str = "[IMG_BREAK]"
    """Text between rows; empty: there is none."""
    end: str = "[IMG_END]"
    """Ends the last row."""


class AnyresImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="anyres"):
    """LLaVA-OneVision's: the whole picture as one tile, then square tiles of it between bars.

    tile: side, pixels.  side: of a tile, embeddings.  forms: height and width, in pixels, that the
    tiles may have together.  most: tiles of which a picture has as many embeddings as it may.
    """

    pixels: Pixels
    tile: int
    side: int
    forms: tuple[tuple[int, int], ...]
    most: int


class NaflexImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="lfm2_vl"):
    """LFM2-VL's: a picture of any size, rounded to whole squares of patches, or, if it is large,
    square tiles of it on a canvas whose form is the nearest to its own, and behind them the whole.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  min_rows, max_rows:
    embeddings of the whole.  large: of how many times as many pixels as the whole may have a
    picture is cut.  tile: side, pixels.  least, most: tiles of a canvas.  split: whether there
    are tiles.  whole: whether the whole follows them.
    """

    pixels: Pixels
    patch: int
    merge: int
    min_rows: int
    max_rows: int
    tile: int
    large: float = 2.0
    least: int = 2
    most: int = 10
    split: bool = True
    whole: bool = True

    @property
    def square(self) -> int:
        """Pixels in a row of a square of patches."""
        return self.patch * self.merge

    @property
    def tile_rows(self) -> int:
        """Embeddings of a tile."""
        return (self.tile // self.square) ** 2


class SlicedImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="minicpmv"):
    """MiniCPM-V's: the whole of a picture, with about as many pixels as a square, and behind it, if
    the picture is larger, slices of it on a grid whose form is the nearest to its own; each has
    about as many pixels, too.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  whole: patches, each
    way, of which sides are multiples.  scale: side of the square, pixels.  most: slices.  split:
    whether there are slices.
    """

    pixels: Pixels
    patch: int
    merge: int = 4
    whole: int = 4
    scale: int = 448
    most: int = 9
    split: bool = True
    queries: int = 0
    """Embeddings of the whole, and of a slice, whatever their size (MiniCPM-V up to 4.5); 0: as
    many as merged squares of patches."""
    begin: str = "<image>"
    end: str = "</image>"
    """Around the embeddings of the whole."""
    slice_begin: str = "<slice>"
    slice_end: str = "</slice>"
    """Around those of a slice. Each row of slices but the first one begins on a new line."""

    @property
    def square(self) -> int:
        """Pixels of which sides are multiples."""
        return self.patch * self.whole


class DocumentImages(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="deepseek_ocr"
):
    """DeepSeek-OCR's: if a picture has a side that is longer than a tile's, square tiles of it on a
    canvas whose form is the nearest to its own; behind them the whole as a square page, between
    bars.

    patch: side, pixels.  tile, page: sides, pixels.  tile_rows, page_rows: embeddings of each.
    least, most: tiles of a canvas.  background: colour of the bars.
    """

    pixels: Pixels
    patch: int
    tile: int
    page: int
    tile_rows: int
    page_rows: int
    least: int = 2
    most: int = 6
    background: tuple[int, int, int] = (127, 127, 127)
    lines: bool = False
    """Whether a learned vector ends each line of embeddings, those of the tiles being of one
    picture; one stands behind all in any case."""


SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Most embeddings of a picture that Gemma 4 knows."""


class PooledImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gemma4"):
    """Gemma 4's: the largest size of whole squares of patches, about in the picture's proportions,
    with at most so many squares.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  most: embeddings of
    a picture.
    """

    pixels: Pixels
    patch: int
    merge: int
    most: int

    @property
    def square(self) -> int:
        """Pixels in a row of a square of patches."""
        return self.patch * self.merge


class SheetImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="phi4mm"):
    """Phi-4-multimodal's: a picture lies, in its proportions, at the top left of a white sheet of
    square tiles, and is followed by the whole sheet as one tile.

    tile: side, pixels.  patch: side, pixels.  merge: patches, each way, that become one embedding.
    most: tiles of a sheet.
    """

    pixels: Pixels
    tile: int
    patch: int
    merge: int = 2
    most: int = 36


class BarredImages(SheetImages, frozen=True, kw_only=True, tag="phi3_v"):
    """Phi-3-vision's: a picture's longer side fills the sheet, and white bars fill the rest at both
    of its sides. They are seen as the picture is.

    Fields as of SheetImages."""

    most: int = 16


class WindowedImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="step3p7"):
    """Step 3.7's: square windows of a picture that is large or long, each resized to one size, and
    behind them the whole as a larger square. Nothing keeps its proportions.

    whole, tile: sides of the square and of a window behind its resizing, pixels.  longest: side to
    which a picture is made smaller first, pixels.  patch: side, pixels.  whole_rows, tile_rows:
    embeddings of each.
    """

    pixels: Pixels
    whole: int
    tile: int
    longest: int
    patch: int
    whole_rows: int
    tile_rows: int
    begin: str = "<im_start>"
    end: str = "<im_end>"
    """Around the embeddings of the whole."""
    tile_begin: str = "<patch_start>"
    tile_end: str = "<patch_end>"
    """Around those of a window."""
    row_end: str = "<patch_newline>"
    """The token between the rows of windows."""


class OverlappingImages(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="molmo2"):
    """Molmo 2's: the whole of a picture as one square, and behind it squares of it that overlap, on
    a canvas whose form is the nearest to its own. Nothing keeps its proportions.

    side: of a square, pixels.  patch: side, pixels.  pool: rows and columns of patches that become
    one embedding.  margins: patches of a crop at the left and above, and at the right and below,
    which its neighbours show, too.  most: crops.
    """

    pixels: Pixels
    side: int
    patch: int
    pool: tuple[int, int] = (2, 2)
    margins: tuple[int, int] = (4, 4)
    most: int = 8
    first_token: int
    """The first one of the tokens that stand for pictures alone, whose embeddings the model has by
    themselves."""
    whole_begin: int
    """The token before the embeddings of the whole."""
    begin: int
    """The one before those of the crops."""
    end: int
    """The one behind either."""
    line_end: int
    """The one that ends a line of embeddings."""
    lines: bool = True
    """Whether it does so in those of the crops."""
    whole_lines: bool = False
    """Whether it does so in those of the whole."""


ImagePreparation = (
    FixedImages
    | ScannedImages
    | TiledImages
    | PatchImages
    | CanvasImages
    | FittedImages
    | RowImages
    | AnyresImages
    | NaflexImages
    | SlicedImages
    | PooledImages
    | DocumentImages
    | SheetImages
    | BarredImages
    | WindowedImages
    | OverlappingImages
    | TwofoldImages
)
