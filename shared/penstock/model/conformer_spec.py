"""A conformer that hears, as data (Gulati et al., "Conformer", 2020; Zhang et al., "Google USM",
2023). Sizes are element counts."""

from __future__ import annotations

import msgspec

REDUCED = 4
"""Windows of a spectrogram that become one vector: two convolutions go two at a time each."""


class ConformerSpec(msgspec.Struct, frozen=True, kw_only=True, tag="conformer"):
    """Gemma 4's tower: two convolutions over windows and bands, each with a layer norm and relu;
    layers of a feed-forward, attention, a convolution over time and another feed-forward, each with
    norms before and behind it; a product with a bias. A vector attends to itself and to those
    before it, by their distance too, as sinusoids of it say."""

    hidden_size: int
    num_layers: int
    num_heads: int
    mel_bins: int
    channels: tuple[int, int]
    """Outputs of the convolutions for each band."""
    window: int
    """Vectors that one attends to, itself among them."""
    reach: int
    """Vectors that the convolution over time reads, the last of which is its own."""
    residual_weight: float = 0.5
    """Factor of what a feed-forward adds."""
    score_cap: float = 50.0
    """Scores x become score_cap * tanh(x / score_cap)."""
    bound: float = 1e10
    """Before and behind its parts a layer's numbers are kept within minus and plus this one."""
    eps: float = 1e-6
    """Epsilon of the norms around convolutions."""
    outputs: int
    """Numbers of the last product."""
    clipped: bool = True
    """Whether the file has bounds of what goes into each of a layer's products, and of what comes
    out."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def width(self) -> int:
        """Numbers of a vector that it gives."""
        return self.outputs


def rows_of(windows: int) -> int:
    """Vectors of so many windows."""
    halved = -(-windows // 2)
    return -(-halved // 2)
