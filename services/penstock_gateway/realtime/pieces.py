"""Sound that comes bit by bit, in pieces that end in pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np  # Below where it is needed: who never transcribes starts without it.

RATE = 16_000
"""Samples a second."""
FRAME = 320
"""Samples whose loudness is looked at together."""
PAUSE = 30
"""Quiet frames that end a piece: 0.6 s."""
LEAD = 15
"""Quiet frames that a piece has at either end, at most."""
SHORTEST = 50
"""Frames that a piece has at least, unless the sound ends."""
FLOOR = 0.002
"""Root of the mean square, of 1, below which nothing is said."""
SHARE = 0.08
"""Share of a piece's loudest frame below which a frame is quiet."""


class PieceCutter:
    """Pieces depend on the samples alone, and not on how many came together.

    A piece ends in the middle of a pause, or at the quietest place of its last third where it has
    become as long as the model can hear. Silence before something is said is dropped.
    """

    def __init__(self, seconds: float) -> None:
        """seconds: that a piece has at most."""
        self._most = int(seconds * RATE) // FRAME
        self._held = bytearray()
        self._levels: list[float] = []
        """Levels of the whole frames that are held: roots of the mean square, of 1."""
        self._loudest = 0.0
        self._quiet = 0
        """Frames at the end that are quiet."""
        self._spoken = False

    @property
    def held(self) -> int:
        """Samples that belong to no piece yet."""
        return len(self._held) // 2

    def add(self, samples: bytes) -> list[np.ndarray]:
        """The pieces that have ended. samples: 16-bit, little-endian, whole."""
        self._held += samples
        found = []
        for level in self._new_levels():
            self._note(level)
            piece = self._ended()
            if piece is not None:
                found.append(piece)
        return found

    def rest(self) -> np.ndarray | None:
        """What is left at the sound's end; None: nothing was said in it."""
        spoken = self._spoken
        piece = self._cut(len(self._levels), len(self._held))
        return piece if spoken else None

    def _new_levels(self) -> Iterator[float]:
        """Levels of the frames that have become whole. Frames before them may be cut off
        meanwhile."""
        import numpy as np

        first = FRAME * len(self._levels)
        fresh = np.frombuffer(bytes(self._held[2 * first :]), "<i2")
        frames = fresh[: len(fresh) // FRAME * FRAME].reshape(-1, FRAME).astype(np.float32)
        roots: np.ndarray = np.sqrt(np.square(frames / 32768).mean(axis=1))
        yield from roots.tolist()

    def _note(self, level: float) -> None:
        """One more frame."""
        loud = level >= max(FLOOR, SHARE * self._loudest)
        self._quiet = 0 if loud else self._quiet + 1
        self._spoken = self._spoken or loud
        self._loudest = max(self._loudest, level)
        self._levels.append(level)

    def _ended(self) -> np.ndarray | None:
        """The piece that ends with the newest frame, or some frames before it."""
        count = len(self._levels)
        if not self._spoken:
            if count > 2 * LEAD:
                self._cut(count - LEAD)
            return None
        if self._quiet >= PAUSE and count >= SHORTEST:
            return self._cut(count - PAUSE + LEAD)
        if count >= self._most:
            third = range(count - count // 3, count)
            return self._cut(1 + min(third, key=self._levels.__getitem__))
        return None

    def _cut(self, frames: int, end: int | None = None) -> np.ndarray:
        """Takes so many frames off, or the bytes up to `end`. Returns float32 samples."""
        import numpy as np

        end = 2 * FRAME * frames if end is None else end
        piece = np.frombuffer(bytes(self._held[:end]), "<i2").astype(np.float32) / 32768
        del self._held[:end]
        left = self._levels[frames:]
        self._levels, self._loudest, self._quiet, self._spoken = [], 0.0, 0, False
        for level in left:  # Fewer than end a piece.
            self._note(level)
        return piece
