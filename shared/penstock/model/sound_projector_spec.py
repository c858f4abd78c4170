"""How a sound tower's vectors become rows of the decoder's size, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.layer_spec import NormSpec


class SoundProjection(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a row of each of a tower's vectors, unless it says otherwise."""

    def row_frames(self, vector_frames: int) -> int:
        """Windows that a row is made of, where a vector is made of so many."""
        return vector_frames

    def rows_of(self, vectors: int) -> int:
        """Rows that are made of so many of a chunk's vectors."""
        return vectors

    @property
    def most(self) -> int | None:
        """Vectors that a chunk has at most; None: any number."""
        return None


class LinearProjector(SoundProjection, frozen=True, kw_only=True, tag="linear"):
    """A product with a bias (Chu et al., "Qwen2-Audio technical report", 2024)."""


class StackProjector(SoundProjection, frozen=True, kw_only=True, tag="stack"):
    """Two products without biases, with gelu between them, of `factor` vectors one after the other
    (Mistral AI, "Voxtral", 2025)."""

    factor: int
    activation: Literal["gelu", "gelu_tanh"] = "gelu"

    def row_frames(self, vector_frames: int) -> int:
        return vector_frames * self.factor


class NarrowProjector(SoundProjection, frozen=True, kw_only=True, tag="narrow"):
    """Two products with biases, with an activation between them; the first is as wide as the tower
    (Qwen3-ASR)."""

    activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "gelu"


class TwofoldProjector(SoundProjection, frozen=True, kw_only=True, tag="twofold"):
    """Two products with biases, with gelu between them, which have other weights for sounds in
    prompts with pictures (Phi-4-multimodal)."""


class NormedProjector(SoundProjection, frozen=True, kw_only=True, tag="normed"):
    """Each vector divided by its root mean square, and a product without a bias (Gemma 4)."""

    eps: float


class EmbedderProjector(SoundProjection, frozen=True, kw_only=True, tag="embedder"):
    """Each vector through a norm, a product without a bias, and a norm without weights. Embeddings
    of the tower's own vocabulary go through the same, with another norm: one pads the rows of a
    sound, one ends them (Gemma 3n, whose token for the end of a sound is in that vocabulary)."""

    eps: float
    vocab: int
    """Embeddings of the tower's own."""
    filler: int
    end: int
    """Which of them fills up, and which ends."""
    vectors: int
    """Number to which the vectors of a sound are filled up."""

    @property
    def rows(self) -> int:
        """How many rows every sound has."""
        return self.vectors + 1

    def rows_of(self, vectors: int) -> int:
        return self.rows

    @property
    def most(self) -> int | None:
        return self.vectors


class QueryProjector(SoundProjection, frozen=True, kw_only=True, tag="queries"):
    """Learned queries, as many for each window of vectors, which attend to one another and to
    these, in layers as BERT's (Li et al., "BLIP-2", 2023), and a product with a bias. The last
    window is filled up with zeros (Granite Speech)."""

    window: int
    """Vectors."""
    queries: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    seeing: int
    """Queries attend to vectors in each layer whose number is a multiple of it."""
    norm: NormSpec

    def row_frames(self, vector_frames: int) -> int:
        return -(-vector_frames * self.window // self.queries)

    def rows_of(self, vectors: int) -> int:
        return -(-vectors // self.window) * self.queries


SoundProjectorSpec = (
    LinearProjector
    | StackProjector
    | NarrowProjector
    | NormedProjector
    | EmbedderProjector
    | QueryProjector
    | TwofoldProjector
)
