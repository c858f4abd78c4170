"""What stands in the attention's place in recurrent layers, as data.

Such a layer keeps a state for each sequence, of one size however long the sequence is. All sizes
are element counts.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class ShortConvSpec(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="short_conv"):
    """A gated convolution over a sequence's last tokens (Liquid AI, LFM2, 2025)."""

    width: int
    """Channels, which are convolved each by itself."""
    kernel: int
    """Tokens that the convolution sees, the present one included."""
    bias: bool = False
    """Whether the convolution and both products have a bias."""

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.width

    @property
    def matrix(self) -> tuple[int, ...]:
        """Shape of the recurrent matrix: there is none."""
        return ()


class GatedDeltaSpec(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gated_delta"
):
    """Gated delta net (Yang et al., "Gated delta networks", 2024), as Qwen3-Next has it: a
    convolution over queries, keys and values, then for each value head a matrix that decays and is
    corrected towards the present value."""

    key_heads: int
    value_heads: int
    """A multiple of key_heads: several share one's queries and keys."""
    key_dim: int
    value_dim: int
    """Numbers of a head's value; key_dim: of its key."""
    kernel: int
    """Tokens that the convolution sees, the present one included."""
    tiled: bool = False
    """Whether value head n has the queries and keys of head n modulo key_heads, and not those of
    head n * key_heads / value_heads."""
    rank: int = 0
    """Set, each number of a key decays by itself, instead of a head's matrix as a whole, and the
    result's gate is logistic instead of silu; both are made of vectors of so many numbers, which
    are made of the hidden state (Kimi Team, "Kimi Linear", 2025)."""
    whole: bool = False
    """Whether keys decay number by number, and gates are logistic, as with a rank, but both are
    made of the hidden state itself (Ling team, "Ling 3.0", 2026)."""
    lowest: float = 0.0
    """Where keys decay number by number, what the logarithm of a decay is above: it is this number
    times a logistic function, instead of a softplus. 0: there is no bound."""
    strongest: float = 1.0
    """What a correction of full strength is; above 1, it overshoots, and the matrix has negative
    eigenvalues (Grazzi et al., "Unlocking state-tracking in linear RNNs through negative
    eigenvalues", 2024)."""
    norm_eps: float | None = None
    """Epsilon of the norm of the result; None: that of the model's norms."""

    @property
    def keys(self) -> int:
        """Numbers of the keys of all heads together."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def by_channel(self) -> bool:
        """Whether each number of a key decays by itself."""
        return self.whole or self.rank > 0

    @property
    def times(self) -> int:
        """Steps in time of a token, which make decays."""
        return self.value_heads * (self.key_dim if self.by_channel else 1)

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def matrix(self) -> tuple[int, ...]:
        """Shape of the recurrent matrix."""
        return (self.value_heads, self.key_dim, self.value_dim)


class Mamba2Spec(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="mamba2"):
    """Mamba 2 (Dao and Gu, "Transformers are SSMs", 2024): a convolution over inputs and both maps
    of the state, then for each head a matrix that decays and takes up the present input."""

    heads: int
    head_dim: int
    groups: int
    """A divisor of heads: the heads of a group share the maps into and out of the state."""
    state: int
    """Numbers of the state for each of a head's channels."""
    kernel: int
    """Tokens that the convolution sees, the present one included."""
    conv_bias: bool = True
    bias: bool = False
    """Whether both products have a bias."""
    normed: bool = True
    """Whether the result is normed after it is gated."""
    norm_groups: int = 1
    """The result is normed in so many equal parts."""
    time_step_min: float = 0.0
    """Smallest step in time, after softplus."""
    time_step_max: float | None = None
    """Upper bound of the time step; None for no bound."""

    @property
    def inner(self) -> int:
        """Channels of all heads together."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: inputs, and the maps into and out of the state."""
        return self.inner + 2 * self.groups * self.state

    @property
    def matrix(self) -> tuple[int, ...]:
        """Shape of the recurrent matrix."""
        return (self.heads, self.head_dim, self.state)


class Mamba1Spec(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="mamba1"):
    """Mamba 1 (Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces",
    2023): a convolution over inputs, of which steps in time and both maps of the state are made;
    then for each channel a vector that decays, each number by itself, and takes up the present
    input."""

    inner: int
    """Channels."""
    state: int
    """Numbers of the state for each channel."""
    kernel: int
    """Tokens that the convolution sees, the present one included."""
    rank: int
    """Numbers of the vector that steps in time are made of."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the products at both ends have a bias."""
    norms: Literal["none", "plain", "weighed"] = "none"
    """Whether that vector and both maps are normed; plain: without weights (Falcon Mamba)."""
    norm_eps: float = 1e-6

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.inner

    @property
    def matrix(self) -> tuple[int, ...]:
        """Shape of the recurrent matrix."""
        return (self.inner, self.state)


RecurrentSpec = ShortConvSpec | GatedDeltaSpec | Mamba2Spec | Mamba1Spec


def result_numbers(spec: RecurrentSpec) -> int:
    """Numbers of what such a layer's recurrence gives for a token, in front of the last product."""
    if isinstance(spec, ShortConvSpec):
        return spec.width
    return spec.values if isinstance(spec, GatedDeltaSpec) else spec.inner


def state_numbers(spec: RecurrentSpec) -> int:
    """float32 numbers of one sequence's state in such a layer, on one rank: the convolution's last
    kernel - 1 inputs, [kernel - 1, channels], then the recurrent matrix. A state of zeros is that
    of no tokens."""
    matrix = 1 if spec.matrix else 0
    for size in spec.matrix:
        matrix *= size
    return (spec.kernel - 1) * spec.channels + matrix
