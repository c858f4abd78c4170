"""A tower of convolutions, as data: MobileNet V5, with which Gemma 3n sees.

Sources: Qin et al., "MobileNetV4: universal models for the mobile ecosystem", 2024; Gemma team,
"Gemma 3n", 2025.
"""

from __future__ import annotations

import msgspec


class EdgeBlock(msgspec.Struct, frozen=True, kw_only=True, tag="edge"):
    """A convolution with a norm and gelu, and a product with a norm; added to what came in where
    both have one form (Gupta and Tan, "EfficientNet-EdgeTPU", 2019)."""

    outputs: int
    """Channels."""
    expansion: int
    """Channels between, for each that comes in."""
    kernel: int
    """Places in a row that the convolution reads."""
    step: int = 1
    """Places from one output to the next."""


class InvertedBlock(msgspec.Struct, frozen=True, kw_only=True, tag="inverted"):
    """A product with a norm and gelu, and one with a norm and a learned factor; added to what came
    in where both have one form. A convolution of each channel by itself may stand before the first,
    with a norm, and another between them, with a norm and gelu ("universal inverted
    bottleneck")."""

    outputs: int
    expansion: int
    start: int = 0
    """Places in a row that the first convolution reads; 0: there is none."""
    middle: int = 0
    """Places in a row that the second reads, which goes `step` places at a time; 0: there is
    none."""
    step: int = 1


class QueryBlock(msgspec.Struct, frozen=True, kw_only=True, tag="query"):
    """Attention to keys and values that all heads share, after a norm; its output is weighed by a
    learned factor and added ("mobile MQA")."""

    heads: int
    head_dim: int
    step: int = 1
    """Places from one that is seen to the next: more than 1 by a convolution of 3 x 3 places of
    each channel by itself, with a norm, before keys and another before values."""


MobileBlock = EdgeBlock | InvertedBlock | QueryBlock


class MobileNetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A convolution of 3 x 3 pixels, every other one, with a norm and gelu, then stages of blocks,
    the first of which halves the sides. What the last two stages give is put together in the form
    of the larger one and becomes, by two products with a norm each and gelu between them, vectors
    of the tower's size. Their means over squares are normalised."""

    stem: int
    """Channels of the first convolution."""
    stages: tuple[tuple[MobileBlock, ...], ...]
    side: int
    """Rows and columns of squares."""
    eps: float = 1e-6
    """What all norms add to the mean square that they divide a place by the root of."""
