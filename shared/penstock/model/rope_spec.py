"""Rotary position embeddings, as data."""

from __future__ import annotations

from typing import Literal

import msgspec


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides all frequencies by `factor`.  `llama3` is the banded scheme of the Llama-3.1
    release: wavelengths longer than original/low_freq_factor are divided by `factor`, shorter than
    original/high_freq_factor are kept, those between are blended.
    `yarn` (Peng et al., 2023) divides by `factor` what turns less than beta_slow times within the
    original context, keeps what turns more than beta_fast times, blends between; cosines and sines
    are multiplied by `attention_factor`.
    `longrope` (Ding et al., 2024) divides frequency i by long_factors[i], or by short_factors[i] in
    a model that is served within its original context; `attention_factor` as for yarn.
    `precomputed` multiplies frequency i by 1 / factors[i] (GGUF's rope_freqs tensor, which has
    `kept` numbers, the first ones of which count; 0: as many as there are frequencies).
    `proportional` divides the first `kept` frequencies by `factor`, and makes all others 0 (Gemma
    4): the head rotates in part, and its pairs are still half of it apart.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope", "precomputed", "proportional"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether the bounds of yarn's blend are whole dimensions."""
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    kept: int = 0


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rotary position embedding (Su et al., 2021)."""

    theta: float = 10_000.0
    dims: int
    """How many numbers of a head rotate, its first ones; even. Number i rotates against number i +
    dims / 2, whatever a file's order is: weights are put into this one when they are loaded."""
    scaling: RopeScaling | None = None
    query_growth: float = 0.0
    """Rotated queries at position p are multiplied by 1 + query_growth * ln(1 + floor((p + first) /
    length)) (Llama 4, Ministral 3)."""
    query_growth_length: int = 8192
    query_growth_first: int = 0
    sections: tuple[int, ...] = ()
    """How many rotary pairs, from the first on, turn by a token's time, row and column (Wang et
    al., "Qwen2-VL", 2024); empty: all turn by its position. Text has three equal numbers."""
    interleaved: bool = False
    """Whether time, row and column take turns, until a row or a column has its number of pairs; all
    others turn by time (Qwen team, "Qwen3-VL technical report", 2025)."""

    @property
    def axes(self) -> tuple[int, ...]:
        """What each pair turns by: 0 a token's time, 1 its row, 2 its column. Empty: all turn by
        its position."""
        if not self.interleaved:
            return tuple(axis for axis, pairs in enumerate(self.sections) for _ in range(pairs))
        _, rows, columns = self.sections
        ends = (0, 3 * rows, 3 * columns)
        return tuple(pair % 3 if pair < ends[pair % 3] else 0 for pair in range(self.dims // 2))
