"""How many chunks, windows and embeddings a sound has: pure arithmetic.

The rules are those of transformers' Whisper, Qwen2-Audio and Voxtral: two convolutions of three
windows each, the second of which goes two windows at a time.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from penstock.model.audio_spec import rows_of
from penstock.model.media_facts import MediaFacts, MediaKind
from penstock.model.sound_facts import (
    BlockMel,
    EmphasisedMel,
    FrameMel,
    HammingMel,
    LogMel,
    PairedMel,
    SoundPreparation,
    Waveform,
)

MIN_RATE, MAX_RATE = 1_000, 384_000
"""Hz, of what is read."""


class BadLength(ValueError):
    """A sound is too short or too long; says what is allowed, to follow "the sound"."""


def chunks_of(mel: LogMel, samples: int) -> int:
    """How many chunks a sound is filled up to. Raises BadLength."""
    if samples < 1:
        raise BadLength("has no samples")
    chunks = -(-samples // mel.chunk_samples)
    if chunks > 1 and not mel.many:
        raise BadLength(
            f"lasts {samples / mel.sampling_rate:.1f} s; this model hears {mel.seconds} s at most"
        )
    return chunks


def convolved(mel: LogMel, samples: int) -> int:
    """Outputs of the second convolution, for a sound of one chunk, that aren't silence that was
    added."""
    windows = -(-samples // mel.hop)
    return (windows + 1) // 2


def frames_of(mel: LogMel, samples: int) -> int:
    """How many windows of a chunk the encoder needs. Raises BadLength."""
    if chunks_of(mel, samples) > 1 or not mel.cut:
        return mel.chunk_frames
    if mel.exact:
        return -(-samples // mel.hop)
    # The last output that is taken reads one window after its two.
    return min(2 * convolved(mel, samples) + 1, mel.chunk_frames)


def windows_of(mel: FrameMel, samples: int) -> int:
    """Windows that end within the sound; the first begins half a window before it. Raises
    BadLength."""
    least = mel.frame - mel.frame // 2 + 1
    if samples < least:
        raise BadLength(
            f"has {samples} samples at {mel.sampling_rate} Hz; this model hears {least} at least"
        )
    _check_longest(mel, samples)
    return -(-(samples - least + 1) // mel.hop)


def emphasised_windows(mel: EmphasisedMel, samples: int) -> int:
    """Windows of a sound of so many samples. Raises BadLength."""
    check_shortest(mel, samples)
    _check_longest(mel, samples)
    return mel.frames(samples)


def _check_longest(mel: FrameMel | EmphasisedMel, samples: int) -> None:
    if samples > mel.seconds * mel.sampling_rate:
        raise BadLength(
            f"lasts {samples / mel.sampling_rate:.1f} s; this model hears {mel.seconds} s at most"
        )


def beside_others(facts: MediaFacts, brought: Collection[MediaKind]) -> MediaFacts:
    """The facts of a prompt with media of these kinds, of a model that encodes sounds otherwise
    where there are pictures, too."""
    own = facts.kinds.get("audio")
    if own is None or not isinstance(own.preparation, HammingMel) or "image" not in brought:
        return facts
    with_pictures = msgspec.structs.replace(own.preparation, beside_pictures=True)
    changed = msgspec.structs.replace(own, preparation=with_pictures)
    return msgspec.structs.replace(facts, kinds={**facts.kinds, "audio": changed})


def check_shortest(mel: PairedMel | EmphasisedMel | HammingMel | Waveform, samples: int) -> None:
    """Raises BadLength."""
    if samples < mel.least:
        raise BadLength(
            f"has {samples} samples at {mel.sampling_rate} Hz; this model hears {mel.least} at"
            " least"
        )


def sound_rows(mel: SoundPreparation, samples: int) -> int:
    """Embeddings of a sound of so many samples, at the model's rate. Raises BadLength."""
    if isinstance(mel, FrameMel):
        return rows_of(windows_of(mel, samples))
    if isinstance(mel, EmphasisedMel):
        emphasised_windows(mel, samples)
        return mel.rows
    if isinstance(mel, BlockMel):
        return mel.rows(samples)
    if isinstance(mel, (PairedMel, HammingMel, Waveform)):
        check_shortest(mel, samples)
        return mel.rows(samples)
    chunks = chunks_of(mel, samples)
    if not mel.cut:
        return chunks * (mel.chunk_frames // mel.row_frames)
    rows = convolved(mel, samples) * 2 // mel.row_frames
    if not rows:
        least = (mel.row_frames // 2 - 1) * 2 * mel.hop + 1
        raise BadLength(
            f"has {samples} samples at {mel.sampling_rate} Hz; this model hears {least} at least"
        )
    return rows
