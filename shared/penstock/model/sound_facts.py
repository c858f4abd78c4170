"""What a model's files say of how sounds are prepared: a struct for each form of spectrogram, which
says how many windows and embeddings a sound has. `penstock.media.spectrogram` computes them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

import msgspec

from penstock.model.audio_spec import block_vectors, rows_of

MIN_RATE, MAX_RATE = 1_000, 384_000
"""Hz, of what is read."""


class BadLength(ValueError):
    """A sound is too short or too long; says what is allowed, to follow "the sound"."""


class SoundForm(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all forms have.

    sampling_rate: Hz, of the samples that the model hears.
    """

    sampling_rate: int

    def embeddings(self, samples: int) -> int:
        """Embeddings of a sound of so many samples. Raises BadLength."""
        raise NotImplementedError

    def beside(self, brought: Collection[str]) -> Self:
        """The form of a sound in a prompt with these kinds of media."""
        return self

    @property
    def knows_pictures(self) -> bool:
        """Whether workers are told that the sound's prompt has pictures, too."""
        return False

    def _check_least(self, samples: int, least: int) -> None:
        if samples < least:
            raise self._too_short(samples, least)

    def _too_short(self, samples: int, least: int) -> BadLength:
        return BadLength(
            f"has {samples} samples at {self.sampling_rate} Hz; this model hears {least} at least"
        )

    def _check_longest(self, samples: int, seconds: int) -> None:
        if samples > seconds * self.sampling_rate:
            raise BadLength(
                f"lasts {samples / self.sampling_rate:.1f} s; this model hears {seconds} s at most"
            )


class LogMel(SoundForm, frozen=True, kw_only=True, tag="log_mel"):
    """A spectrogram of powers in bands of the mel scale, as logarithms (Radford et al., "Robust
    speech recognition via large-scale weak supervision", 2022).

    The numbers of chunks, windows and embeddings are those of transformers' Whisper, Qwen2-Audio
    and Voxtral: two convolutions of three windows each, the second of which goes two windows at a
    time.

    bins: bands.  n_fft: samples of a window.  hop: from one window to the next, samples.  seconds:
    of a chunk, to which a sound is filled up with silence.  row_frames: windows of which an
    embedding is made.
    """

    bins: int
    n_fft: int
    hop: int
    seconds: int
    row_frames: int
    many: bool = False
    """Whether a longer sound is several chunks; else it is refused."""
    cut: bool = False
    """Whether the silence that fills up a chunk is left out of what is encoded."""
    exact: bool = False
    """Whether what is encoded ends with the sound's last window; else, where it is cut, with the
    one after what its last vector is made of."""

    @property
    def chunk_samples(self) -> int:
        return self.seconds * self.sampling_rate

    @property
    def chunk_frames(self) -> int:
        return self.chunk_samples // self.hop

    def chunks(self, samples: int) -> int:
        """How many chunks a sound is filled up to. Raises BadLength."""
        if samples < 1:
            raise BadLength("has no samples")
        if not self.many:
            self._check_longest(samples, self.seconds)
        return -(-samples // self.chunk_samples)

    def windows(self, samples: int) -> int:
        """How many windows of a chunk the encoder needs. Raises BadLength."""
        if self.chunks(samples) > 1 or not self.cut:
            return self.chunk_frames
        if self.exact:
            return -(-samples // self.hop)
        # The last output that is taken reads one window after its two.
        return min(2 * self._convolved(samples) + 1, self.chunk_frames)

    def embeddings(self, samples: int) -> int:
        chunks = self.chunks(samples)
        if not self.cut:
            return chunks * (self.chunk_frames // self.row_frames)
        rows = self._convolved(samples) * 2 // self.row_frames
        if not rows:
            raise self._too_short(samples, (self.row_frames // 2 - 1) * 2 * self.hop + 1)
        return rows

    def _convolved(self, samples: int) -> int:
        """Outputs of the second convolution, for a sound of one chunk, that aren't silence that was
        added."""
        windows = -(-samples // self.hop)
        return (windows + 1) // 2


class BlockMel(SoundForm, frozen=True, kw_only=True, tag="block_mel"):
    """LogMel's spectrogram of a sound of any length, which is not filled up: it is encoded in
    blocks (Qwen3-ASR).

    block: windows.  least: samples, to which a shorter sound is filled up with silence.  seconds:
    of a recording, that are transcribed together.
    """

    bins: int
    n_fft: int
    hop: int
    block: int
    least: int
    seconds: int

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return max(samples, self.least) // self.hop

    def embeddings(self, samples: int) -> int:
        return block_vectors(self.frames(samples), self.block)


class FrameMel(SoundForm, frozen=True, kw_only=True, tag="frame_mel"):
    """Gemma 4's: the logarithms of magnitudes in bands of the mel scale, of windows that lie in the
    sound as a whole but for silence before its beginning.

    bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  floor: what is added to a magnitude.  seconds: of a sound, at most.
    """

    bins: int
    lowest: float
    highest: float
    frame: int
    hop: int
    n_fft: int
    floor: float
    seconds: int

    def windows(self, samples: int) -> int:
        """Windows that end within the sound; the first begins half a window before it. Raises
        BadLength."""
        least = self.frame - self.frame // 2 + 1
        self._check_least(samples, least)
        self._check_longest(samples, self.seconds)
        return -(-(samples - least + 1) // self.hop)

    def embeddings(self, samples: int) -> int:
        return rows_of(self.windows(samples))


class EmphasisedMel(SoundForm, frozen=True, kw_only=True, tag="emphasised_mel"):
    """Gemma 3n's: the logarithms of magnitudes in bands of the mel scale, of windows in which each
    sample is less a share of the one before it. Every sound has as many embeddings.

    bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  emphasis: the share.  floor: the least magnitude that counts.  multiple: of
    so many samples, to which a sound is filled up with silence.  seconds: of a sound, at most.
    rows: embeddings.
    """

    bins: int
    lowest: float
    highest: float
    frame: int
    hop: int
    n_fft: int
    emphasis: float
    floor: float
    multiple: int
    seconds: int
    rows: int

    @property
    def least(self) -> int:
        """Fewest samples of a sound: padded, these are a window and at least one sample more."""
        return self.frame // self.multiple * self.multiple + 1

    def padded(self, samples: int) -> int:
        """Samples with the silence that fills them up to a multiple of `multiple`."""
        return -(-samples // self.multiple) * self.multiple

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return (self.padded(samples) - self.frame - 1) // self.hop + 1

    def windows(self, samples: int) -> int:
        """The same of a sound that is checked. Raises BadLength."""
        self._check_least(samples, self.least)
        self._check_longest(samples, self.seconds)
        return self.frames(samples)

    def embeddings(self, samples: int) -> int:
        self.windows(samples)
        return self.rows


class PairedMel(SoundForm, frozen=True, kw_only=True, tag="paired_mel"):
    """Granite Speech's: the logarithms of powers in bands of the mel scale, of an even number of
    windows, of which each two become a vector.

    sampling_rate: Hz.  bins: bands of a window.  frame: samples of a window.  n_fft: samples up to
    which it is filled with zeros, at both sides.  hop: from one window's middle to the next,
    samples.  window: vectors of which `queries` embeddings are made.  seconds: of a recording, that
    are transcribed together.
    """

    bins: int
    frame: int
    n_fft: int
    hop: int
    window: int
    queries: int
    seconds: int

    @property
    def least(self) -> int:
        """Samples that a sound has at least: those before its beginning are its mirror image."""
        return max(self.n_fft // 2 + 1, self.hop)

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples. Raises BadLength."""
        self._check_least(samples, self.least)
        return (samples // self.hop + 1) // 2 * 2

    def embeddings(self, samples: int) -> int:
        return -(-self.frames(samples) // (2 * self.window)) * self.queries


class HammingMel(SoundForm, frozen=True, kw_only=True, tag="hamming_mel"):
    """Phi-4-multimodal's: the logarithms of powers in bands of the mel scale, of Hamming windows
    that lie in the sound as a whole, in which each sample is less a share of the one before it.

    bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  emphasis: the share.  reduced: windows of which an embedding is made.
    """

    bins: int
    lowest: float
    highest: float
    frame: int
    hop: int
    n_fft: int
    emphasis: float
    reduced: int
    beside_pictures: bool = False
    """Whether the sound's prompt has pictures, too, with which it is encoded otherwise."""

    def beside(self, brought: Collection[str]) -> Self:
        return msgspec.structs.replace(self, beside_pictures=True) if "image" in brought else self

    @property
    def knows_pictures(self) -> bool:
        return self.beside_pictures

    @property
    def least(self) -> int:
        """Samples that a sound has at least."""
        return self.frame

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples. Raises BadLength."""
        self._check_least(samples, self.least)
        return (samples - self.frame) // self.hop + 1

    def embeddings(self, samples: int) -> int:
        return -(-self.frames(samples) // self.reduced)


class Waveform(SoundForm, frozen=True, kw_only=True, tag="waveform"):
    """Gemma 4 12B's: a sound's samples as they are. Silence fills up the last frame.

    frame: samples of which an embedding is made.
    """

    frame: int

    @property
    def least(self) -> int:
        """Samples that a sound has at least."""
        return 1

    def embeddings(self, samples: int) -> int:
        self._check_least(samples, self.least)
        return -(-samples // self.frame)


class Spectrogram(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="spectrogram"):
    """Preparation of a whole recording as `mel` has it: filled up with silence to one chunk, but
    not cut into several. It is no model's: who transcribes cuts windows out of the result."""

    mel: LogMel


SoundPreparation = LogMel | BlockMel | FrameMel | EmphasisedMel | PairedMel | HammingMel | Waveform
