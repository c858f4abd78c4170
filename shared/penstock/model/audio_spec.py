"""A model's audio encoder, as data: a tower that makes vectors of a log-mel spectrogram, and a
projector that makes embeddings of the decoder's size of them.

A family of models fills these structs. Sizes are element counts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.layer_spec import NormSpec
from penstock.model.sound_projector_spec import SoundProjectorSpec


class SoundTower(msgspec.Struct, frozen=True, kw_only=True):
    """A tower that takes a sound of any length as a whole, unless it says otherwise. Structs can't
    be abstract: what raises NotImplementedError here is each tower's own to say."""

    @property
    def vector_frames(self) -> int:
        """Windows that a vector is made of; of a sound in blocks, at most."""
        raise NotImplementedError

    def takes(self, chunks: int, frames: int, audio: AudioSpec) -> bool:
        """Whether a sound may have so many chunks of so many windows each."""
        return chunks == 1

    @property
    def needed(self) -> str:
        """What `takes` takes, for people."""
        return "one chunk is needed"

    def rows(self, frames: int, row_frames: int) -> int:
        """Vectors of a chunk of so many windows; of a tower of Whisper's form, rows of so many
        windows."""
        raise NotImplementedError


class AudioTowerSpec(SoundTower, frozen=True, kw_only=True, tag="whisper"):
    """Whisper's encoder (Radford et al., 2022): two convolutions of three windows each, the second
    of which goes two windows at a time; a table of positions; layers in which all of a chunk's
    vectors attend to one another; a norm.

    With blocks (Qwen team, "Qwen2.5-Omni technical report", 2025) a sound has any length. Each
    block of its windows is convolved by itself, and has positions of its own, which are sines; its
    vectors attend to one another."""

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
    block: int = 0
    """Windows of a block, an even number; 0: there are none."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def chunk_frames(self) -> int:
        """Windows of a whole chunk."""
        return 2 * self.positions

    @property
    def vector_frames(self) -> int:
        return 4 if self.pooled else 2

    def takes(self, chunks: int, frames: int, audio: AudioSpec) -> bool:
        if self.block:
            return chunks == 1 and self.rows(frames, audio.row_frames) > 0
        whole, part = self.chunk_frames, audio.cut and chunks == 1
        return frames == whole or (part and audio.row_frames <= frames < whole)

    @property
    def needed(self) -> str:
        if self.block:
            return "one chunk of three or more is needed"
        return f"{self.chunk_frames} are needed"

    def rows(self, frames: int, row_frames: int) -> int:
        return ((frames + 1) // 2 * 2 if self.block else frames) // row_frames


class BlockTowerSpec(SoundTower, frozen=True, kw_only=True, tag="blocks"):
    """Qwen3-ASR's encoder (Qwen team, "Qwen3-ASR technical report", 2026), for a sound of any
    length: three convolutions of three windows and three bands each, which go two of both at a
    time, within each block of windows by itself; a product, and sines of a vector's place in its
    block; layers in which the vectors of some blocks in a row attend to one another; a norm."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    mel_bins: int
    channels: int
    """Outputs of each convolution."""
    block: int
    """Windows; the last block is filled up with zeros."""
    short_alone: bool = False
    """Whether the only block of a shorter sound isn't (Qwen3-Omni)."""
    seen: int
    """Blocks whose vectors attend to one another."""
    norm: NormSpec
    activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "gelu"
    """Activation of the layers; after the convolutions it is always gelu."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def vector_frames(self) -> int:
        return 8

    def vectors(self, frames: int) -> int:
        """Vectors of a sound of so many windows."""
        return block_vectors(frames, self.block)

    def rows(self, frames: int, row_frames: int) -> int:
        return self.vectors(frames)


def block_vectors(frames: int, block: int) -> int:
    """Vectors that three convolutions make of so many windows, in blocks."""
    whole, rest = divmod(frames, block)
    return whole * halved(block) + halved(rest)


def halved(size: int) -> int:
    """What three convolutions leave of a size."""
    for _ in range(3):
        size = (size + 1) // 2
    return size


REDUCED = 4
"""Windows of a spectrogram that become one vector: two convolutions go two at a time each."""


class ConformerSpec(SoundTower, frozen=True, kw_only=True, tag="conformer"):
    """Gemma 4's and Gemma 3n's tower, a conformer (Gulati et al., "Conformer", 2020; Zhang et al.,
    "Google USM", 2023): two convolutions over windows and bands, each with a norm and relu; layers
    of a feed-forward, attention, a convolution over time and another feed-forward, each with norms
    before and after it; a product with a bias. A vector attends to itself and to those before it,
    by their distance too, as sinusoids of it say."""

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
    """Before and after its parts a layer's numbers are clamped to minus and plus this one."""
    eps: float = 1e-6
    """Epsilon of the norms around convolutions."""
    outputs: int
    """Numbers of a vector that the last product makes; 0: there is none."""
    clipped: bool = True
    """Whether the file has bounds of what goes into each of a layer's products, and of what comes
    out."""
    grown_keys: bool = True
    """Whether keys are multiplied by log2(1 + e) where they are compared with queries."""
    ahead: bool = False
    """Whether a convolution over windows reads its own and the two after it; else one before and
    one after."""
    cumulative_eps: float | None = None
    """Epsilon of the convolutions' norms if these are over all channels and bands of a window and
    of those before it; None: over a place's channels."""
    every: int = 1
    """The first of so many of the last layer's vectors is given."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def given_size(self) -> int:
        """Numbers of a vector that it gives."""
        return self.outputs or self.hidden_size

    @property
    def vector_frames(self) -> int:
        return REDUCED * self.every

    def vectors(self, frames: int) -> int:
        """Vectors that it gives of so many windows."""
        return -(-rows_of(frames) // self.every)

    def rows(self, frames: int, row_frames: int) -> int:
        return self.vectors(frames)


def rows_of(windows: int) -> int:
    """Vectors of so many windows."""
    halved = -(-windows // 2)
    return -(-halved // 2)


class BlockConformerSpec(SoundTower, frozen=True, kw_only=True, tag="block_conformer"):
    """Granite Speech's encoder, a conformer (Gulati et al., "Conformer", 2020) over pairs of
    windows: layers of a feed-forward, attention, a convolution over time and another feed-forward,
    each after a norm; half of what feed-forwards give is added. Vectors of a block attend to one
    another, by their distance too, for which keys have learned parts (Shaw et al., "Self-attention
    with relative position representations", 2018). After the layers' first half, a CTC head's
    output for each vector is projected back and added to it."""

    hidden_size: int
    intermediate_size: int
    """Inner dimension of a feed-forward."""
    num_layers: int
    num_heads: int
    head_dim: int
    mel_bins: int
    """Bands of one window."""
    block: int
    """Vectors that attend to one another; the last block may have fewer."""
    distances: int
    """Up to which, each way, the file has learned parts."""
    channels: int
    """Numbers of a vector within the convolution."""
    reach: int
    """Vectors that the convolution reads, about half of which come after its own."""
    outputs: int
    """What the head in the middle tells apart."""

    @property
    def vector_frames(self) -> int:
        return 2

    def takes(self, chunks: int, frames: int, audio: AudioSpec) -> bool:
        return chunks == 1 and not frames % 2

    @property
    def needed(self) -> str:
        return "one chunk of pairs of windows is needed"

    def rows(self, frames: int, row_frames: int) -> int:
        return frames // 2


class BiasedConformerSpec(SoundTower, frozen=True, kw_only=True, tag="biased_conformer"):
    """Phi-4-multimodal's encoder, a conformer (Gulati et al., "Conformer", 2020): convolutions of
    three windows and three bands, each of which halves both, the first over all inputs, the others
    over each by itself, followed by a product; layers of a feed-forward, attention, a convolution
    over a vector and those before it, and another feed-forward, each after a norm; half of what
    feed-forwards give is added. Vectors of a block attend to one another, and a table says what is
    added to a score for each distance and head."""

    hidden_size: int
    intermediate_size: int
    """Inner dimension of a feed-forward."""
    num_layers: int
    num_heads: int
    mel_bins: int
    channels: int
    """Outputs of each convolution that halves."""
    halvings: int
    """How many of these there are."""
    distances: int
    """Distances before and after a vector for which the table has entries; larger ones count as the
    largest."""
    symmetric: bool = False
    """Whether the table has one row for both directions."""
    reach: int
    """Vectors that the convolution of a layer reads, the last of which is its own."""
    block: int = 500
    """Vectors that attend to one another. Zeros fill up the last of several blocks."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def table(self) -> int:
        """Rows of the table of distances."""
        return self.distances if self.symmetric else 2 * self.distances

    @property
    def reduced(self) -> int:
        """Windows that become a vector."""
        return 1 << self.halvings

    @property
    def vector_frames(self) -> int:
        return self.reduced

    def vectors(self, frames: int) -> int:
        """Vectors of so many windows."""
        return -(-frames // self.reduced)

    def rows(self, frames: int, row_frames: int) -> int:
        return self.vectors(frames)


class WaveformSpec(SoundTower, frozen=True, kw_only=True, tag="waveform"):
    """No tower: a vector is some of a sound's samples in a row, as they are (Gemma 4 12B)."""

    frame: int
    """Samples of a vector."""

    @property
    def num_layers(self) -> int:
        return 0

    @property
    def hidden_size(self) -> int:
        return self.frame

    @property
    def mel_bins(self) -> int:
        """Numbers of what stands for a window."""
        return self.frame

    @property
    def vector_frames(self) -> int:
        return 1

    def rows(self, frames: int, row_frames: int) -> int:
        return frames


SoundTowerSpec = (
    AudioTowerSpec
    | BlockTowerSpec
    | ConformerSpec
    | BlockConformerSpec
    | BiasedConformerSpec
    | WaveformSpec
)


class AudioSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model's audio encoder. tower: makes vectors of a sound.  projector: makes rows of these,
    which stand in the place of a prompt's placeholders; None: the vectors are the rows, as where a
    decoder attends to them."""

    tower: SoundTowerSpec
    projector: SoundProjectorSpec | None
    cut: bool = False
    """Whether the silence that fills up a chunk is left out."""
    row_multiplier: float = 1.0
    """What rows are multiplied by, as the embeddings of tokens are (Granite)."""

    @property
    def row_frames(self) -> int:
        """Windows that a row is made of; of a sound in blocks, at most."""
        of_vector = self.tower.vector_frames
        return of_vector if self.projector is None else self.projector.row_frames(of_vector)

    def takes(self, chunks: int, frames: int) -> bool:
        """Whether a sound may have so many chunks of so many windows each."""
        most = None if self.projector is None else self.projector.most
        fits = most is None or self.tower.rows(frames, self.row_frames) <= most
        return fits and self.tower.takes(chunks, frames, self)

    @property
    def needed(self) -> str:
        """What `takes` takes, for people."""
        most = None if self.projector is None else self.projector.most
        if most is None:
            return self.tower.needed
        return f"one chunk that becomes {most} vectors at most is needed"

    def rows(self, chunks: int, frames: int) -> int:
        """Embeddings of a sound of so many chunks of so many windows each."""
        made = self.tower.rows(frames, self.row_frames)
        return chunks * (made if self.projector is None else self.projector.rows_of(made))
