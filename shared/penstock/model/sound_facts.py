"""What a model's files say of how sounds are prepared: a struct for each form of spectrogram."""

from __future__ import annotations

import msgspec

from penstock.model.audio_spec import block_vectors


class LogMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="log_mel"):
    """A spectrogram of powers in bands of the mel scale, as logarithms (Radford et al., "Robust
    speech recognition via large-scale weak supervision", 2022).

    sampling_rate: Hz.  bins: bands.  n_fft: samples of a window.  hop: from one window to the next,
    samples.  seconds: of a chunk, to which a sound is filled up with silence.  row_frames: windows
    of which an embedding is made.
    """

    sampling_rate: int
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


class BlockMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block_mel"):
    """LogMel's spectrogram of a sound of any length, which is not filled up: it is encoded in
    blocks (Qwen3-ASR).

    block: windows.  least: samples, to which a shorter sound is filled up with silence.  seconds:
    of a recording, that are transcribed together.
    """

    sampling_rate: int
    bins: int
    n_fft: int
    hop: int
    block: int
    least: int
    seconds: int

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return max(samples, self.least) // self.hop

    def rows(self, samples: int) -> int:
        """Embeddings of a sound of so many samples."""
        return block_vectors(self.frames(samples), self.block)


class FrameMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="frame_mel"):
    """Gemma 4's: the logarithms of magnitudes in bands of the mel scale, of windows that lie in the
    sound as a whole but for silence before its beginning.

    sampling_rate: Hz.  bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  floor: what is added to a magnitude.  seconds: of a sound, at most.
    """

    sampling_rate: int
    bins: int
    lowest: float
    highest: float
    frame: int
    hop: int
    n_fft: int
    floor: float
    seconds: int


class EmphasisedMel(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="emphasised_mel"
):
    """Gemma 3n's: the logarithms of magnitudes in bands of the mel scale, of windows in which each
    sample is less a share of the one before it. Every sound has as many embeddings.

    sampling_rate: Hz.  bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  emphasis: the share.  floor: the least magnitude that counts.  multiple: of
    so many samples, to which a sound is filled up with silence.  seconds: of a sound, at most.
    rows: embeddings.
    """

    sampling_rate: int
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


class PairedMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="paired_mel"):
    """Granite Speech's: the logarithms of powers in bands of the mel scale, of an even number of
    windows, of which each two become a vector.

    sampling_rate: Hz.  bins: bands of a window.  frame: samples of a window.  n_fft: samples up to
    which it is filled with zeros, at both sides.  hop: from one window's middle to the next,
    samples.  window: vectors of which `queries` embeddings are made.  seconds: of a recording, that
    are transcribed together.
    """

    sampling_rate: int
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
        """Windows of a sound of so many samples."""
        return (samples // self.hop + 1) // 2 * 2

    def rows(self, samples: int) -> int:
        """Embeddings of a sound of so many samples."""
        return -(-self.frames(samples) // (2 * self.window)) * self.queries


class HammingMel(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="hamming_mel"):
    """Phi-4-multimodal's: the logarithms of powers in bands of the mel scale, of Hamming windows
    that lie in the sound as a whole, in which each sample is less a share of the one before it.

    sampling_rate: Hz.  bins: bands.  lowest, highest: Hz, of all bands together.  frame: samples of
    a window.  hop: from one window to the next, samples.  n_fft: samples up to which a window is
    filled with zeros.  emphasis: the share.  reduced: windows of which an embedding is made.
    """

    sampling_rate: int
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

    @property
    def least(self) -> int:
        """Samples that a sound has at least."""
        return self.frame

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return (samples - self.frame) // self.hop + 1

    def rows(self, samples: int) -> int:
        """Embeddings of a sound of so many samples."""
        return -(-self.frames(samples) // self.reduced)


class Waveform(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="waveform"):
    """Gemma 4 12B's: a sound's samples as they are. Silence fills up the last frame.

    sampling_rate: Hz.  frame: samples of which an embedding is made.
    """

    sampling_rate: int
    frame: int

    @property
    def least(self) -> int:
        """Samples that a sound has at least."""
        return 1

    def rows(self, samples: int) -> int:
        """Embeddings of a sound of so many samples."""
        return -(-samples // self.frame)


class Spectrogram(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="spectrogram"):
    """Preparation of a whole recording as `mel` has it: filled up with silence to one chunk, but
    not cut into several. It is no model's: who transcribes cuts windows out of the result."""

    mel: LogMel


SoundPreparation = LogMel | BlockMel | FrameMel | EmphasisedMel | PairedMel | HammingMel | Waveform
