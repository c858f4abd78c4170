"""How a vision tower's vectors become rows of the decoder's size, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.document_spec import DocumentProjector, PageProjector
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_form import (
    FactorProjector,
    PictureSides,
    ProjectorForm,
    QuarterProjector,
)


class MLPProjector(ProjectorForm, frozen=True, kw_only=True, tag="mlp"):
    """Two products with an activation between them; one row for each patch (Liu et al., "Improved
    baselines with visual instruction tuning", 2023)."""

    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    bias: bool = True


class PlainProjector(ProjectorForm, frozen=True, kw_only=True, tag="plain"):
    """A product with a bias; one row for each of the tower's vectors, followed by one of zeros for
    the image token, which is seen as text is (Llama 3.2 Vision)."""


class ShuffleProjector(FactorProjector, frozen=True, kw_only=True, tag="shuffle"):
    """A product of the vectors of each square of factor x factor patches, one after the other
    (Laurençon et al., "Building and better understanding vision-language models", 2024)."""


class SquareMLPProjector(FactorProjector, frozen=True, kw_only=True, tag="square_mlp"):
    """One row for each square of factor x factor patches: a norm, and two products with an
    activation between them (InternVL 3: Zhu et al., 2025; Mistral Small 3.1, 2025)."""

    norm: NormSpec | None
    """None: there is none, and nothing is merged."""
    inner: int = 0
    """Outputs of the first product; 0: the decoder's hidden size."""
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    bias: bool = True
    """Whether both products have a bias."""
    gated: bool = False
    """Whether the second product is of the first half of what the first one gives times silu of
    the other half, instead of an activation of all of it (Aya Vision, Command A Vision)."""
    merged: bool = False
    """Whether the norm is of each patch, and a product after it makes one vector of a square's;
    else the norm is of the square's vectors, one after the other."""


class AdapterProjector(FactorProjector, frozen=True, kw_only=True, tag="adapter"):
    """Two products, each followed by gelu, and a third, of the vectors of each square of factor x
    factor patches, one after the other (Meta AI, "The Llama 4 herd", 2025). None has a bias."""

    inner: int
    """Outputs of the first product, and of the second."""


class AnyresProjector(ProjectorForm, frozen=True, kw_only=True, tag="anyres"):
    """Two products with an activation between them for each patch. The rows are those of the first
    tile, then those of the others as one picture: bars are cut off, it is made smaller where it has
    too many, and a learned vector ends each line (Li et al., "LLaVA-OneVision", 2024)."""

    forms: tuple[tuple[int, int], ...]
    """Rows and columns of pixels that the other tiles may have together."""
    most: int
    """Tiles of which the picture has as many rows as it may."""
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    bias: bool = True

    def side(self, patches: int) -> int:
        """Embeddings in a row of a tile of so many patches in a row."""
        return patches

    def patches_in_row(self, sides: PictureSides) -> int:
        """A picture that fills its tiles loses patches where it is made smaller; one that doesn't
        has bars. Four of a video's become one."""
        tile = (sides.pixels or 1) ** 2
        tiles = max(height * width for height, width in self.forms) // tile
        return max(4, 2 * -(-(1 + tiles) // (1 + self.most)))


class WindowPart(msgspec.Struct, frozen=True, kw_only=True):
    """One of a WindowProjector's, which has weights of its own."""

    name: str
    """Name that its weights begin with."""
    output: int
    """Place in TowerSpec.taken of the layer whose output it takes."""
    corner: int | None = None
    """Which patch of each square of 2 x 2 a query begins with, row by row; None: a mean."""


class WindowProjector(AnyresProjector, frozen=True, kw_only=True, tag="windows"):
    """Learned queries in each window of a tile, to which a smaller copy of the tile is added, as in
    a layer of BERT that attends to the window's patches, too, and a product. Each part makes rows,
    as of AnyresProjector; those of the first one stand in the token's place, or zeros
    (VisionSpec.levels_behind). (Granite Vision team, "Granite 4 Vision", 2026; Li et al., "BLIP-2",
    2023.)"""

    parts: tuple[WindowPart, ...]
    window: int
    """Patches in a row of a window."""
    queries: int
    """Queries in a row of a window."""
    num_heads: int
    inner: int
    """Outputs of the feed-forward's first product."""
    norm: NormSpec
    """Form of the layer's norms; that of the tower's output is another."""

    def side(self, patches: int) -> int:
        return patches // self.window * self.queries


class SquaresProjector(ProjectorForm, frozen=True, kw_only=True):
    """One row for each square of side x side patches. A picture's patches are ordered by such
    squares."""

    side: int

    @property
    def order(self) -> int:
        return self.side

    def patches_in_row(self, sides: PictureSides) -> int:
        return self.side**2


class MergerProjector(SquaresProjector, frozen=True, kw_only=True, tag="merger"):
    """A norm of each patch, then two products with gelu between them over each square (Wang et al.,
    "Qwen2-VL", 2024)."""

    norm: NormSpec
    behind: bool = False
    """Whether the norm is one of all the square's patches together."""


class GatedMergerProjector(MergerProjector, frozen=True, kw_only=True, tag="gated_merger"):
    """One row for each square of side x side patches: a product with a bias, and what is a
    feed-forward without one: a product, a layer norm and gelu, and activation(gate) * up
    (GLM-V team, "GLM-4.1V-Thinking", 2025). `norm` is of rows of the decoder's size."""

    inner: int
    """Outputs of the gate."""
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu"] = "silu"


class TwiceProjector(SquaresProjector, frozen=True, kw_only=True, tag="twice"):
    """Two products with gelu between them for each patch, which give a row of the decoder's size,
    and again two over each square's rows, one after the other (MiniMax M3)."""

    inner: int
    """Outputs of the first product, and of the third."""
    bias: bool = True
    """Whether the first two products have a bias."""
    square_bias: bool = True
    """Whether the others have one."""


class PoolProjector(ProjectorForm, frozen=True, kw_only=True, tag="pool"):
    """The mean of each square of patches, normalised by the root mean square with a factor 1 +
    weight, and a product (Gemma team, "Gemma 3 technical report", 2025)."""

    side: int
    """Rows, and columns, of squares that a picture has."""
    eps: float
    plus_one: bool = True
    """Whether the file has the factor less 1."""

    def patches_in_row(self, sides: PictureSides) -> int:
        return (sides.side // self.side) ** 2


class SquarePoolProjector(FactorProjector, frozen=True, kw_only=True, tag="square_pool"):
    """One row for each square of factor x factor patches: their mean times the root of the tower's
    size, divided by its root mean square, and a product without a bias (Gemma 4)."""

    eps: float
    rooted: bool = True
    """Whether the mean is multiplied by that root; Gemma 4 12B's isn't."""
    standardised: bool = False
    """Whether a learned vector is subtracted from the mean, and another one multiplies it, before
    it is divided."""


class SheetProjector(FactorProjector, frozen=True, kw_only=True, tag="sheet"):
    """Two products with biases, with gelu between them, of the means of squares of factor x factor
    patches. Those of a sheet's tiles are lines of one picture, as far as it isn't all white, each
    ended by a learned vector; after another one come the lines of the whole sheet, which is the
    first tile. White patches aren't seen by others (Phi-4-multimodal: Microsoft, "Phi-4-mini
    technical report", 2025)."""

    factor: int = 2
    whole: bool = False
    """Whether the vectors of a square stand one after the other instead of their mean, and white
    patches are as good as others (Phi-3-vision: Microsoft, "Phi-3 technical report", 2024)."""

    def width(self, inputs: int) -> int:
        """Numbers of a square, whose patches have so many."""
        return inputs * self.factor**2 if self.whole else inputs


class HalvingProjector(QuarterProjector, frozen=True, kw_only=True, tag="halving"):
    """One row for each square of QUARTER x QUARTER patches: two convolutions of 3 x 3 vectors with
    biases that go two places at a time, each of which doubles the vectors' size, and a product
    (StepFun, "Step 3.7 Flash", 2026)."""

    bias: bool = False
    """Whether the product has a bias."""


class ResamplerProjector(ProjectorForm, frozen=True, kw_only=True, tag="resampler"):
    """Each tile has as many rows as there are learned queries, which see all of its patches: a
    product without a bias and a norm make keys and values of these, and sines and cosines of a
    patch's column and row are added to what becomes a key. A norm and a product without a bias
    follow (Yao et al., "MiniCPM-V", 2024; Bai et al., "Qwen-VL", 2023). Rows have as many numbers
    as queries."""

    queries: int
    num_heads: int
    side: int
    """Patches in a row of a square of about as many as a tile has."""
    eps: float = 1e-6
    """What norms add to a variance."""

    def patches_in_row(self, sides: PictureSides) -> int:
        return -(-(self.side**2) // self.queries)


class TwoTowersProjector(ProjectorForm, frozen=True, kw_only=True, tag="two towers"):
    """One row for each patch of the tower: products with biases of its vector, and of that which
    convolutions make of the second tower's output there, concatenated, then gelu and a product
    (DeepSeek-AI, "DeepSeek-VL", 2024). The second tower's output is that of a layer in between and
    that of the last one: either goes through two convolutions, each followed by a norm, is
    interpolated to four times the tower's sides, and goes through two of stride two. The first is
    multiplied by a learned number and added to the second."""

    channels: int
    """Outputs of the convolutions before the interpolation; the two after it have twice and four
    times as many."""
    norm: NormSpec
    """Form of the norms that follow convolutions."""

    def patches_in_row(self, sides: PictureSides) -> int:
        """With their share of the larger picture."""
        return 1 + -(-(sides.larger**2) // sides.side**2)


class ClassProjector(ProjectorForm, frozen=True, kw_only=True, tag="class"):
    """One row for each tile: a norm of the class token's vector, and a product without a bias
    (Radford et al., "CLIP", 2021)."""

    norm: NormSpec

    def patches_in_row(self, sides: PictureSides) -> int:
        return sides.side**2


class ProbeProjector(ProjectorForm, frozen=True, kw_only=True, tag="probe"):
    """One row for each tile: a learned query attends to all of its patches with as many heads as
    the tower has, and a feed-forward as in the tower's layers follows, after a norm (Zhai et al.,
    "SigLIP", 2023)."""

    def patches_in_row(self, sides: PictureSides) -> int:
        return sides.side**2


MOST_POOLED = 9
"""Patches of which such a row is made at most, with those that crops of a picture have in
common."""


class PooledProjector(ProjectorForm, frozen=True, kw_only=True, tag="pooled"):
    """One row for each square of patches of a picture, or of squares of it that overlap: the mean
    of what the tower gives for them is a query that sees them, and a gated feed-forward without
    biases follows, down(silu(gate) * up). The token's own embedding is added. Rows of tokens
    stand around and among them, which the file has apart from the decoder's others (Clark et al.,
    "Molmo2", 2026)."""

    size: int
    """Numbers of a query."""
    num_heads: int
    inner: int
    """Outputs of the gate."""
    tokens: int
    """Embeddings of tokens that stand for pictures alone."""
    patch_token: int
    """The number among them of the one that a row is added to."""

    def patches_in_row(self, sides: PictureSides) -> int:
        return MOST_POOLED


class NormedTwiceProjector(ProjectorForm, frozen=True, kw_only=True, tag="normed_twice"):
    """One row for each patch: its vector times the root of its size, divided by its root mean
    square, a product, and again such a division. A picture's rows are followed by that of a token
    of the tower's own vocabulary, whose norm has other factors (Gemma team, "Gemma 3n", 2025)."""

    eps: float
    vocab: int
    """Tokens of the tower's own vocabulary."""
    end: int
    """The number among them of the one that ends a picture."""


Projector = (
    MLPProjector
    | PlainProjector
    | NormedTwiceProjector
    | ShuffleProjector
    | SquareMLPProjector
    | AdapterProjector
    | AnyresProjector
    | WindowProjector
    | MergerProjector
    | GatedMergerProjector
    | TwiceProjector
    | PoolProjector
    | SquarePoolProjector
    | ClassProjector
    | ProbeProjector
    | DocumentProjector
    | PageProjector
    | SheetProjector
    | HalvingProjector
    | PooledProjector
    | ResamplerProjector
    | TwoTowersProjector
)
