"""What a model's files say about the media it takes: all that changes a pixel, a frame of sound or
a token.

Filled by `penstock.prepare` from preprocessor_config.json, processor_config.json and config.json;
`penstock.media` does what it says.  `vision_spec` and `audio_spec` say what becomes of the
pixels and frames.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.audio_spec import block_vectors
from penstock.model.transcription_facts import Alignment, SpokenChat, TranscriptionFacts

MediaKind = Literal["image", "audio", "video"]

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


class FrameSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames of a video file are shown.

    fps: so many for each second of it, min_frames to max_frames in all; 0: its length doesn't
    matter.  num_frames: at most so many; 0: max_frames.
    """

    num_frames: int = 32
    fps: float = 0.0
    min_frames: int = 4
    max_frames: int = 768
    spread: Literal["even", "ends"] = "even"
    """even: one at the beginning of each of so many equal parts.  ends: from the first to the
    last."""


class VideoFrames(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="frames"):
    """Qwen2-VL's and its successors' videos: frames of any size, rounded to whole merged patches,
    each of which spans `group` frames.

    min_pixels, max_pixels: of a resized frame.  patch: side, pixels.  merge: patches, each way,
    that become one embedding.
    """

    pixels: Pixels
    min_pixels: int
    max_pixels: int
    patch: int
    merge: int
    group: int = 2
    sampling: FrameSampling = FrameSampling()
    all_pixels: int = 0
    """Most pixels of all frames together, of which each has an even share, but no less than 1.05
    times min_pixels; 0: no such bound."""
    positions_per_second: float = 0.0
    """How far apart in time the positions of a second are; 0: those of groups follow one
    another."""
    of_all: bool = False
    """Whether min_pixels and max_pixels are of all frames together; all_pixels is of each then."""
    stamped: tuple[str, str] = ("", "")
    """The text around the embeddings of each group of frames, if each group has its time written
    before it; else two empty texts."""


class FixedFrames(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fixed_frames"):
    """LLaVA-OneVision's videos: frames of one size, each of which has fewer embeddings than a
    picture; one embedding ends the video.

    height, width: of what the tower gets.  rows: embeddings of a frame.
    """

    pixels: Pixels
    height: int
    width: int
    rows: int
    sampling: FrameSampling = FrameSampling()

    @property
    def group(self) -> int:
        """Frames that are encoded together."""
        return 1


class LogMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="log_mel"):
    """A spectrogram of powers in bands of the mel scale, as logarithms (Radford et al., "Robust
    speech recognition via large-scale weak supervision", 2022).

    sampling_rate: Hz.  bins: bands.  n_fft: samples of a window.  hop: from one window to the next,
    samples.  seconds: of a chunk, to which a sound is filled up with silence.  row_frames: windows
    of which an embedding is made.
    """

    sampling_rate: int
    bins: int
    n_fft: int
    hop: int
    seconds: int
    row_frames: int
    many: bool = False
    """Whether a longer sound is several chunks; else it is refused."""
    cut: bool = False
    """Whether the silence that fills up a chunk is left out of what is encoded."""

    @property
    def chunk_samples(self) -> int:
        return self.seconds * self.sampling_rate

    @property
    def chunk_frames(self) -> int:
        return self.chunk_samples // self.hop


class BlockMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block_mel"):
    """LogMel's spectrogram of a sound of any length, which is not filled up: it is encoded in
    blocks (Qwen3-ASR).

    block: windows.  least: samples, to which a shorter sound is filled up with silence.  seconds:
    of a recording, that are transcribed together.
    """

    sampling_rate: int
    bins: int
    n_fft: int
    hop: int
    block: int
    least: int
    seconds: int

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return max(samples, self.least) // self.hop

    def rows(self, samples: int) -> int:
        """Embeddings of a sound of so many samples."""
        return block_vectors(self.frames(samples), self.block)


class FrameMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="frame_mel"):
    """Gemma 4's: the logarithms of magnitudes in bands of the mel scale, of windows that lie in the
    sound as a whole but for silence before its beginning.

    sampling_rate: Hz.  bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  floor: what is added to a magnitude.  seconds: of a sound, at most.
    """

    sampling_rate: int
    bins: int
    lowest: float
    highest: float
    frame: int
    hop: int
    n_fft: int
    floor: float
    seconds: int


class EmphasisedMel(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="emphasised_mel"
):
    """Gemma 3n's: the logarithms of magnitudes in bands of the mel scale, of windows in which each
    sample is less a share of the one before it. Every sound has as many embeddings.

    sampling_rate: Hz.  bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  emphasis: the share.  floor: the least magnitude that counts.  multiple: of
    so many samples, to which a sound is filled up with silence.  seconds: of a sound, at most.
    rows: embeddings.
    """

    sampling_rate: int
    bins: int
    lowest: float
    highest: float
    frame: int
    hop: int
    n_fft: int
    emphasis: float
    floor: float
    multiple: int
    seconds: int
    rows: int

    @property
    def least(self) -> int:
        """Samples that a sound has at least: a window, and the one behind it."""
        return self.frame // self.multiple * self.multiple + 1

    def padded(self, samples: int) -> int:
        """Samples with the silence behind them."""
        return -(-samples // self.multiple) * self.multiple

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return (self.padded(samples) - self.frame - 1) // self.hop + 1


class PairedMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="paired_mel"):
    """Granite Speech's: the logarithms of powers in bands of the mel scale, of an even number of
    windows, of which each two become a vector.

    sampling_rate: Hz.  bins: bands of a window.  frame: samples of a window.  n_fft: samples up to
    which it is filled with zeros, at both sides.  hop: from one window's middle to the next,
    samples.  window: vectors of which `queries` embeddings are made.  seconds: of a recording, that
    are transcribed together.
    """

    sampling_rate: int
    bins: int
    frame: int
    n_fft: int
    hop: int
    window: int
    queries: int
    seconds: int

    @property
    def least(self) -> int:
        """Samples that a sound has at least: those before its beginning are its mirror image."""
        return max(self.n_fft // 2 + 1, self.hop)

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return (samples // self.hop + 1) // 2 * 2

    def rows(self, samples: int) -> int:
        """Embeddings of a sound of so many samples."""
        return -(-self.frames(samples) // (2 * self.window)) * self.queries


class Spectrogram(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="spectrogram"):
    """Preparation of a whole recording as `mel` has it: filled up with silence to one chunk, but
    not cut into several. It is no model's: who transcribes cuts windows out of the result."""

    mel: LogMel


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
)
VideoPreparation = VideoFrames | FixedFrames
SoundPreparation = LogMel | BlockMel | FrameMel | EmphasisedMel | PairedMel
Preparation = ImagePreparation | VideoPreparation | SoundPreparation
AnyPreparation = Preparation | Spectrogram


class KindFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's files say about one kind of media.

    placeholder: what stands for an item in a filled chat template; "": items have no place in a
    text.  token: the special token that is repeated in its place, once an embedding.  before,
    behind: text around these, in the prompt (a tile's own is the preparation's).
    """

    preparation: Preparation
    placeholder: str
    token: str
    token_id: int
    before: str = ""
    behind: str = ""
    numbered: tuple[str, str] = ("", "")
    """Text around an item's number among those of its kind in a prompt, from 0 on, which stands
    before it; two empty texts: items aren't numbered."""


class MediaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's files say about all media that it takes; the manifest has it."""

    kinds: dict[MediaKind, KindFacts]
    """Facts of each kind that the model takes."""
    transcription: TranscriptionFacts | SpokenChat | None = None
    """Facts of a model that turns speech into text; None for all others."""
    alone: bool = False
    """Whether an item is an input by itself, without any text, of a model that makes vectors."""

    @property
    def in_front(self) -> MediaKind | None:
        """The kind of media of which an encoder-decoder model has one item before each prompt;
        None: items stand within prompts, or by themselves."""
        if self.alone:
            return None
        return next((kind for kind, own in self.kinds.items() if not own.placeholder), None)


def alignment_of(media: MediaFacts | None) -> Alignment | None:
    """How times of words are known; None: they aren't."""
    heard = None if media is None else media.transcription
    return None if heard is None or isinstance(heard, SpokenChat) else heard.alignment


def alignment_heads(media: MediaFacts | None) -> tuple[tuple[int, int], ...]:
    """(layer, head) of those that follow the sound."""
    found = alignment_of(media)
    return () if found is None else found.heads
