"""A stretch of sound that becomes text, from its first commit to the final one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from penstock.client.computing import fingerprint_of_parts
from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.media.sources import MediaSource
from penstock.request.terms import Terms
from penstock.transcription.begin import begin, facts_of
from penstock.transcription.transcript import RunningText
from penstock.transcription.wishes import Wishes
from penstock_gateway.service import Service

if TYPE_CHECKING:
    import numpy as np  # Below where it is needed: who never transcribes starts without it.


AUDIO = "audio"
"""The field that sound comes in, for messages."""
LONGEST = 14_400
"""Seconds of an utterance."""
BYTES = 6
"""Bytes that a sample takes here: 16 bits as it came, or a float in a piece, and its twin on the
way."""


class Utterance:
    """Sound goes in by `append`, text comes out of `texts`."""

    def __init__(self, service: Service, lease: MediaLease, model: str | None) -> None:
        """lease: what is held here.  model: as it is asked for.

        Raises InvalidRequest for a model that doesn't transcribe.
        """
        self._service = service
        self._lease = lease
        self.wishes = Wishes()
        self.begun = False
        self.model = model
        """Name of the model that transcribes it, unless the first message names another."""
        facts = facts_of(service.models.backend_of(model).text())
        self._cutter = PieceCutter(facts.window_seconds)
        self._pieces: deque[np.ndarray] = deque()
        self._more = asyncio.Event()
        self._ended = False
        self._samples = 0
        self._hearing = 0
        """Samples of the piece that is being transcribed."""
        self._held = 0
        """Samples that the lease has room for."""
        self.text = RunningText()
        self._fingerprint: str | None = None
        """What its pieces are computed with; None: none has been transcribed yet."""

    @property
    def seconds(self) -> float:
        """Seconds of sound that have come."""
        return self._samples / RATE

    @property
    def busy(self) -> bool:
        """Whether text is to come of what has been said."""
        return self._ended or bool(self._hearing or self._pieces)

    def append(self, data: bytes) -> None:
        """Appends samples. Raises InvalidRequest for more than may wait for transcription, and what
        the lease raises."""
        count = len(data) // 2
        waiting = (self._waiting + count) / RATE
        most = self._service.media.max_seconds
        if waiting > most:
            raise InvalidRequest(
                f"{waiting:.0f} s of sound wait to be transcribed; {most:g} s may "
                "(--max-media-seconds)",
                param=AUDIO,
                code="audio_too_long",
            )
        if self._samples + count > LONGEST * RATE:
            raise InvalidRequest(
                f"an utterance may have at most {LONGEST} s of audio: commit it as final, and "
                "begin the next one",
                param=AUDIO,
                code="audio_too_long",
            )
        self._lease.take(BYTES * count, AUDIO)
        self._held += count
        self._samples += count
        self._take(self._cutter.add(data))

    def end(self) -> None:
        """Takes the end of the sound: no more comes."""
        rest = self._cutter.rest()
        self._ended = True
        self._take([] if rest is None else [rest])

    def _take(self, pieces: list[np.ndarray]) -> None:
        self._pieces.extend(pieces)
        self._release()
        self._more.set()

    async def texts(self, terms: Terms, name: str) -> AsyncIterator[str]:
        """What the text gains, piece by piece, until the sound has ended. Raises as `begin` and
        Transcriber.segments do."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._hearing = len(piece)
                async for gained in self._of_piece(piece, terms, name):
                    yield gained
                self._hearing = 0
                self._release()
            if self._ended:
                return
            await self._more.wait()
            self._more.clear()

    def close(self) -> None:
        """Whatever becomes of it, what is held goes."""
        self._pieces.clear()
        self._lease.give(BYTES * self._held)
        self._held = 0

    @property
    def _waiting(self) -> int:
        """Samples that aren't transcribed yet. Silence that was dropped is none of them."""
        return self._hearing + sum(map(len, self._pieces)) + self._cutter.held

    def _release(self) -> None:
        """Gives back the room of sound that was transcribed, or dropped."""
        waiting = self._waiting
        self._lease.give(BYTES * (self._held - waiting))
        self._held = waiting

    async def _of_piece(self, piece: np.ndarray, terms: Terms, name: str) -> AsyncIterator[str]:
        service = self._service
        source = MediaSource(AUDIO, kind="audio", samples=(piece.astype("<f4").tobytes(), RATE))
        async with AsyncExitStack() as stack:
            asked = await stack.enter_async_context(service.models.using(self.model))
            lease = stack.enter_context(service.media.lease(terms.tenant))
            if self._fingerprint is None:
                self._fingerprint = await fingerprint_of_parts(asked.client, [], terms)
            transcriber = await begin(
                asked.client,
                service.media,
                asked.engine.text,
                source,
                lease,
                self.wishes,
                name=name,
                terms=msgspec.structs.replace(terms, fingerprint=self._fingerprint),
            )
            async for segments in transcriber.segments():
                for segment in segments:
                    gained = self.text.add(segment.text)
                    if gained:
                        yield gained
        # The speaker goes on in the same language.
        self.wishes = replace(self.wishes, language=transcriber.language)


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
    become as long as the model takes. Silence before something is said is dropped.
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
        """Returns what is left at the sound's end; None if nothing was said in it."""
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
        """Takes the level of one more frame."""
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
