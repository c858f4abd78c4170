"""What hears in a model, as data: a tower that makes vectors of a spectrogram's frames.

A family of models fills these structs. Sizes are element counts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.layer_spec import NormSpec


class AudioTowerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A transformer over sound (Radford et al., "Robust speech recognition via large-scale weak
    supervision", 2022): two convolutions over three frames each, the second one of every other
    frame; a table of positions; layers in which the vectors of a chunk attend to one another; a
    norm. Products have biases, but for keys."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    mel_bins: int
    positions: int
    """Vectors of a chunk at most: half as many as it has frames."""
    norm: NormSpec = NormSpec(kind="layer", eps=1e-5, bias=True)
    activation: Literal["gelu", "gelu_tanh", "silu"] = "gelu"
    pooled: bool = False
    """Whether each two of the last layer's vectors become their mean, before the norm."""
    gated: bool = False
    """Whether the feed-forward is activation(gate) * up."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def row_frames(self) -> int:
        """Frames of a vector."""
        return 4 if self.pooled else 2


class AudioSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model hears with."""

    tower: AudioTowerSpec
    cut: bool = False
    """Whether a sound's last chunk may have fewer frames than others."""

    @property
    def chunk_frames(self) -> int:
        return 2 * self.tower.positions

    @property
    def row_bytes(self) -> int:
        """Of a prepared sound, for each of its rows: float32 of each band of its frames."""
        return 4 * self.tower.mel_bins * self.tower.row_frames
