"""What sees in a model, as data: a tower that makes vectors of a picture's patches, and a projector
(`projector_spec`) that makes embeddings of the decoder's size of them.

A family of models fills these structs. Sizes are element counts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.layer_spec import NormSpec
from penstock.model.mobilenet_spec import MobileNetSpec
from penstock.model.projector_form import PictureSides
from penstock.model.projector_spec import (
    Projector,
)


class RotaryPositions(msgspec.Struct, frozen=True, kw_only=True, tag="rotary"):
    """Queries and keys rotate by the patch's row and column: the first half of a head's rotary
    pairs by the row, the others by the column."""

    theta: float = 10_000.0
    table: int = 0
    """Side of a square table whose vectors are added to the patches before: it is stretched over
    the picture, corner on corner, and a patch has the mean of the four vectors around it, each the
    more the nearer it is (Qwen3-VL). 0: there is none."""
    by_edges: bool = False
    """Whether the table's edges lie on the picture's, and not its corners' vectors on its corners'
    patches (PaddleOCR-VL)."""
    cubic: bool = False
    """Whether the table is stretched edge on edge instead, so that a patch has a sum of the sixteen
    vectors around it, weighed by cubic convolution (GLM-4.1V, Kimi K2.5)."""
    by_turns: bool = False
    """Whether the pairs of a head turn by column and row in turn, instead of the first half of them
    by one of these (Kimi K2.5). Both have the same frequencies."""
    alternating: bool = False
    """Whether rows have every other frequency of a head's, from the first on, and columns those
    between them (Pixtral); else both have the same."""
    columns_first: bool = False
    """Whether the first half of the pairs turns by the column."""
    adjacent: bool = False
    """Whether the numbers of a pair are adjacent in the file's rows."""
    by_halves: bool = False
    """Whether the file has the numbers that turn by row, and those that turn by column, in a half
    of a head each, in which those of a pair are half of it apart (Gemma 4)."""
    by_axes: bool = False
    """Whether the file has the numbers that turn by frame, by row and by column in a third of what
    turns each, in which those of a pair are half of it apart (MiniMax M3's mmproj)."""
    timed: bool = False
    """Whether the first third of the pairs turns by the number of the group of frames among those
    that see one another, the second by the row, the last by the column. All have the same
    frequencies. What three whole numbers of pairs leave of a head doesn't turn (MiniMax M3)."""
    first: int = 0
    """Number of the first row and column: a class token doesn't turn, as one at 0."""


class LearnedPositions(msgspec.Struct, frozen=True, kw_only=True, tag="learned"):
    """A table with a vector for each patch of a square, row by row; the class token's is the first
    one, if there is such a token."""

    side: int
    """Patches of a row of the square."""
    fractional: bool = False
    """Whether a patch has the place that lies at the same share of its row and column: a picture
    may have another form than the square (Dehghani et al., "Patch n' Pack", 2023)."""
    stretched: bool = False
    """Whether the table is stretched over the picture, edge on edge: a patch has the mean of the
    vectors near it, of all that it covers where it is larger (Tschannen et al., "SigLIP 2",
    2025)."""
    cubic: bool = False
    """Whether the mean is one of cubic convolution, where the table is stretched."""
    of_parts: bool = False
    """Whether an item may have parts of two forms, whose patches have places as `fractional` says
    (MiniCPM-V). Where a patch begins is a quotient then, and not a product with a reciprocal, which
    differ where rounding decides."""
    rotary: RotaryPositions | None = None
    """Positions by which queries and keys rotate, too (Llama 4); None: they don't."""


class AxialPositions(msgspec.Struct, frozen=True, kw_only=True, tag="axial"):
    """A table with a vector for each column of patches, and one with a vector for each row: a patch
    has the sum of both of its own (Gemma 4)."""

    side: int
    """Vectors of either table."""
    rotary: RotaryPositions | None = None
    """Positions by which queries and keys rotate, too."""


class WindowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Attention within squares of a picture (Qwen team, "Qwen2.5-VL technical report", 2025)."""

    side: int
    """Side of a square, in patches."""
    whole: tuple[int, ...]
    """Layers that attend to the whole picture instead."""
    grid: int = 0
    """Patches in a row of the squares for which the layers in `whole` have a vector for each
    distance in rows, and in columns: the product of a query with the vectors of how far away a key
    is is added to its score. Zeros fill up squares at the right and below (Kirillov et al.,
    "Segment anything", 2023). 0: nothing depends on distances, and squares may be narrower."""


class MergingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What makes one vector of each square of patches between two layers of a tower: its patches
    attend to one another after a norm; then follow a norm of all of them together and two products
    with gelu's approximation between them. Their mean is added (OpenBMB, "MiniCPM-V 4.6", 2026)."""

    behind: int
    """Number of the layer before it."""
    side: int
    """Patches in a row of a square."""
    inner: int
    """Outputs of the first product."""


class AspectSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a tower does with a canvas of tiles (Llama 3.2 Vision): all of them see one another, and
    tiles without pixels, up to `most` of them; learned vectors say for each form of canvas which
    tile a patch is of. Then come a norm and layers whose two halves have a learned gate each; their
    output is concatenated with the inputs of some of the layers before them."""

    most: int
    """Tiles of a canvas at most, and of what is computed."""
    patches: int
    """Patches of a tile."""
    global_layers: int
    """Layers after the norm."""
    taken: tuple[int, ...]
    """Layers before it whose inputs are taken, too, counted from 0."""


class TowerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A vision transformer (Dosovitskiy et al., 2021). Patches of a picture attend to all of its
    others. Attention and feed-forward follow a norm each, and are added to the residual."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    """Layers that are computed."""
    unread_layers: int = 0
    """Layers in the files after the one whose output is taken, which aren't read."""
    num_heads: int
    patch: int
    """Rows and columns of pixels in a patch."""
    channels: int = 3
    frames: int = 1
    """Pictures of a video that make up a patch. A single picture is repeated."""
    together: int = 1
    """Groups of so many frames of a video that see one another, counted from the first one; 0: all
    of them do."""
    norm: NormSpec
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu"] = "gelu"
    """quick_gelu: x * sigmoid(1.702 x)."""
    gated: bool = False
    """Whether the feed-forward is activation(gate) * up."""
    patch_bias: bool = False
    qkv_bias: bool = True
    """Whether queries, keys and values have a bias."""
    bias: bool = True
    """Whether a layer's other products have a bias."""
    kv_heads: int | None = None
    """Key and value heads, which heads share; None: each has its own."""
    query_norms: bool = False
    """Whether queries, and keys, are normalised over all heads together."""
    head_norms: bool = False
    """Whether queries, and keys, are normalised head by head."""
    value_norm: bool = False
    """Whether each head's values are divided by their root mean square."""
    score_scale: float | None = None
    """Factor of query times key; None: head_dim ** -0.5."""
    output_norms: bool = False
    """Whether norms follow attention and feed-forward, too, before their results are added."""
    clipped: bool = False
    """Whether the file has bounds of what goes into each of a layer's products, and of what comes
    out (Gemma 4)."""
    centred: bool = False
    """Whether pixels, which are from 0 to 1, become numbers from -1 to 1 first."""
    layer_scale: bool = False
    """Whether learned factors weigh what attention and feed-forward add (Touvron et al., "Going
    deeper with image transformers", 2021)."""
    positions: LearnedPositions | AxialPositions | RotaryPositions | None
    """None: of a tower of convolutions, which see where a patch lies."""
    convolutions: MobileNetSpec | None = None
    """What there is instead of layers: pixels become vectors of squares, a patch each (Gemma
    3n)."""
    class_token: bool = False
    """Whether a learned vector stands before the patches."""
    keeps_class: bool = False
    """Whether the class token's output is given to the decoder, too."""
    pixel_norm: bool = False
    """Whether a patch's pixels are normalised before the first product; the norm's factors are in
    the file row by row, with the colours of a pixel one after the other (Gemma 4 12B)."""
    first_norm: bool = False
    """Whether the embedded patches are normalised."""
    patch_norm: bool = False
    """Whether they are normalised before a table's vectors are added."""
    last_norm: bool = False
    """Whether the last layer's output is normalised."""
    taken: tuple[int, ...] = ()
    """Layers whose outputs, one after the other, are a patch's vector, counted from the embedded
    patches, 0 (Granite Vision); empty: the last layer's alone is."""
    windows: WindowSpec | None = None
    merging: MergingSpec | None = None
    aspects: AspectSpec | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def merged(self) -> int:
        """Patches in a row of a square of which the tower itself makes one."""
        return 1 if self.merging is None else self.merging.side

    @property
    def width(self) -> int:
        """Numbers of a patch's vector."""
        if self.aspects is not None:
            return self.hidden_size * (1 + len(self.aspects.taken))
        return self.hidden_size * max(len(self.taken), 1)

    @property
    def rotary(self) -> RotaryPositions | None:
        """Positions by which queries and keys rotate; None: they don't."""
        if self.positions is None or isinstance(self.positions, RotaryPositions):
            return self.positions
        return self.positions.rotary


class VisionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model's vision encoder. `tower` says how a picture's patches become vectors, `projector`
    how these become rows: embeddings that stand in the place of a prompt's placeholders."""

    tower: TowerSpec
    projector: Projector
    image_size: int | None = None
    """Rows and columns of pixels of each picture; None: they differ."""
    second: TowerSpec | None = None
    """A tower over a larger picture of the same, of a TwoTowersProjector."""
    second_size: int = 0
    """Rows and columns of pixels of that picture."""
    deepstack_layers: tuple[int, ...] = ()
    """Layers of the tower whose outputs have projectors of their own, mergers with a norm of whole
    squares. Those of the first one are added to the rows after the decoder's first layer, and so
    on (Meng et al., "DeepStack", 2024)."""
    levels_behind: tuple[int, ...] = ()
    """Layers of the decoder after which the levels of rows are added, where these aren't the first
    ones (Granite 4 Vision)."""
    row_multiplier: float = 1.0
    """What rows are multiplied by: a decoder's factor of embeddings, where it is for whatever
    stands in a token's place (Granite)."""
    spans_whole: bool = False
    """Whether the rows of a span of placeholders attend to one another in both directions, so that
    they must be computed in the same step."""
    windowed_spans: bool = False
    """Whether they do so only in the decoder's layers that have a window (Gemma 4)."""

    def row_width(self, hidden: int) -> int:
        """Numbers of a row's encoding, for a decoder of that hidden size: what stands in the
        token's place, then what each level of DeepStack adds."""
        return hidden * (1 + len(self.added_behind))

    @property
    def added_behind(self) -> tuple[int, ...]:
        """The decoder's layer after which each level of DeepStack is added."""
        return self.levels_behind or tuple(range(len(self.deepstack_layers)))

    @property
    def patches_in_row(self) -> int:
        """Patches that one row is made of, at least."""
        larger = self.second_size // self.tower.patch
        sides = PictureSides(self.tower.merged, self.side, larger, self.image_size or 0)
        return self.projector.patches_in_row(sides)

    @property
    def side(self) -> int:
        """Patches in a row of a picture that has a fixed size."""
        return (self.image_size or 0) // self.tower.patch
