"""A recording as its spectrogram, and windows of it as items for the encoder."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.media.budget import MediaLease
from penstock.media.desk import MediaDesk
from penstock.media.item_names import PreparedItems, sha256_hex
from penstock.media.items import PreparedItem
from penstock.media.layout import layout
from penstock.media.sources import MediaSource
from penstock.model.media_facts import MediaFacts
from penstock.model.sound_facts import BlockMel, LogMel, PairedMel, Spectrogram
from penstock.model.transcription_facts import SpokenChat, TranscriptionFacts

if TYPE_CHECKING:
    import numpy as np  # Below where it is needed: who never transcribes starts without it.


async def record(
    desk: MediaDesk,
    media: MediaFacts,
    facts: TranscriptionFacts | SpokenChat,
    source: MediaSource,
    lease: MediaLease,
) -> Recording:
    """The recording, prepared once, with room for one window of it. Raises as MediaDesk.prepare
    does."""
    mel = media.kinds["audio"].preparation
    if not isinstance(mel, LogMel | BlockMel | PairedMel):
        raise TypeError(f"a model that transcribes takes sounds as {type(mel).__name__}")
    alike = Spectrogram(mel=mel) if isinstance(mel, LogMel) else mel
    (item,) = await desk.prepare_alike(alike, [source], lease)
    lease.take(4 * mel.bins * facts.window_frames, source.where)
    return Recording(item, mel, facts, media)


class Recording:
    """frames: of the sound itself, which `mel`, [bins, frames] float32, may have more of: a short
    one is filled up with silence."""

    def __init__(
        self,
        item: PreparedItem,
        mel: LogMel | BlockMel | PairedMel,
        facts: TranscriptionFacts | SpokenChat,
        media: MediaFacts,
    ) -> None:
        from penstock.media import prepared
        from penstock.media.log_mel import LOG_MEL

        self.mel: np.ndarray = prepared.read(item.data)[LOG_MEL][0]
        (samples,) = item.shape
        self.seconds = samples / mel.sampling_rate
        self.frames = min(-(-samples // mel.hop), self.mel.shape[1])
        self._name = item.name
        self.seed = int(sha256_hex(f"seed of {item.name}".encode())[:8], 16)
        """Follows from the recording: the same for the same recording."""
        self._preparation = mel
        self._facts = facts
        self._media = media

    def is_silent(self, begin: int, end: int) -> bool:
        """Whether frames [begin, end) are all at the floor: a model would make words up."""
        part = self.mel[:, begin:end]
        return bool(part.min() == part.max())

    async def window(self, begin: int, end: int) -> PreparedItems:
        """Frames [begin, end), filled up to what the encoder takes."""
        item = await asyncio.to_thread(self._item, begin, end)
        return PreparedItems(self._media, (item,), (layout(self._media, "audio", item.shape),))

    def _item(self, begin: int, end: int) -> PreparedItem:
        import numpy as np

        from penstock.media import prepared
        from penstock.media.log_mel import LOG_MEL

        # A short recording's silence is the preparation's own.
        end = self.mel.shape[1] if end >= self.frames else end
        part = self.mel[:, begin : min(end, begin + self._facts.window_frames)]
        count, fill = self._filled(part.shape[1])
        whole = np.full((1, len(self.mel), count), fill, np.float32)
        whole[0, :, : part.shape[1]] = part
        data = prepared.write({LOG_MEL: whole})
        samples = (count * self._preparation.hop,)
        return PreparedItem(self._named(begin, end), data, sha256_hex(data), samples)

    def _filled(self, frames: int) -> tuple[int, float]:
        """Frames that a window of so many gets, and what the others hold: Whisper's algorithm for
        long recordings has zeros there, a short sound in blocks has silence."""
        mel = self._preparation
        if isinstance(mel, LogMel):
            return self._facts.window_frames, 0.0
        from penstock.media.log_mel import silence

        count = max(frames, mel.least // mel.hop)
        return count + (count % 2 if isinstance(mel, PairedMel) else 0), silence(self.mel)

    def _named(self, begin: int, end: int) -> str:
        """Name of a window, made of what it is a part of."""
        return sha256_hex(f"window {begin} {end} of {self._name}".encode())


SEARCHED = 1 / 6
"""Share of a window, counted from its end, in which a quiet place is looked for."""
SMOOTHED_SECONDS = 0.2
"""Over which loudness is averaged: a stop consonant is no pause."""


def quiet_windows(mel: np.ndarray, window: int, frames_per_second: int) -> list[tuple[int, int]]:
    """(begin, end) of each window, frames; at most `window` each. A cut lies in the middle of the
    quietest stretch near a window's end.

    mel: [bins, frames] float32, logarithms of power.

    Finds where to cut a long recording: at its quietest places.
    """
    total = mel.shape[1]
    loudness = _smoothed(mel.mean(axis=0, dtype="float64"), frames_per_second)
    found = []
    begin = 0
    while total - begin > window:
        earliest = begin + window - max(1, round(window * SEARCHED))
        end = earliest + int(loudness[earliest : begin + window].argmin())
        found.append((begin, end))
        begin = end
    found.append((begin, total))
    return found


def _smoothed(loudness: np.ndarray, frames_per_second: int) -> np.ndarray:
    """[frames] float64: means around each frame."""
    import numpy as np

    half = max(1, round(SMOOTHED_SECONDS * frames_per_second / 2))
    sums = np.concatenate(([0.0], np.cumsum(loudness)))
    at = np.arange(len(loudness))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(loudness))
    return np.asarray((sums[high] - sums[low]) / (high - low))
