"""What hears in a model, as data: a tower that makes vectors of a log-mel spectrogram, and a
projector that makes embeddings of the decoder's size of them.

A family of models fills these structs. Sizes are element counts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.layer_spec import NormSpec


class AudioTowerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Whisper's encoder (Radford et al., 2022): two convolutions of three windows each, the second
    of which goes two windows at a time; a table of positions; layers in which all of a chunk's
    vectors attend to one another; a norm."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    mel_bins: int
    positions: int
    """Vectors of a whole chunk: half its windows."""
    norm: NormSpec
    activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "gelu"
    """Activation of the layers; after the convolutions it is always gelu."""
    pooled: bool = False
    """Whether the norm comes after the mean of each two of the last layer's vectors."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def chunk_frames(self) -> int:
        """Windows of a whole chunk."""
        return 2 * self.positions


class LinearProjector(msgspec.Struct, frozen=True, kw_only=True, tag="linear"):
    """A product with a bias (Chu et al., "Qwen2-Audio technical report", 2024)."""


class StackProjector(msgspec.Struct, frozen=True, kw_only=True, tag="stack"):
    """Two products without biases, with gelu between them, of `factor` vectors one after the other
    (Mistral AI, "Voxtral", 2025)."""

    factor: int
    activation: Literal["gelu", "gelu_tanh"] = "gelu"


class AudioSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model hears with. tower: makes vectors of a sound.  projector: makes rows of these,
    which stand in the place of a prompt's placeholders; None: the vectors are the rows, as where a
    decoder attends to them."""

    tower: AudioTowerSpec
    projector: LinearProjector | StackProjector | None
    cut: bool = False
    """Whether the silence that fills up a chunk is left out."""

    @property
    def row_frames(self) -> int:
        """Windows that a row is made of."""
        stacked = self.projector.factor if isinstance(self.projector, StackProjector) else 1
        return 2 * (2 if self.tower.pooled else 1) * stacked

    @property
    def chunk_rows(self) -> int:
        """Embeddings of a whole chunk."""
        return self.tower.chunk_frames // self.row_frames
