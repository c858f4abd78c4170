"""Transcripts in OpenAI's shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from penstock.transcription.languages import name_of
from penstock.transcription.spoken_chat import ChatTranscriber
from penstock.transcription.transcriber import Segment, Transcriber

_PLAIN = "text/plain; charset=utf-8"


class DurationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """seconds: of the recording, rounded up."""

    type: Literal["duration"] = "duration"
    seconds: int


class TranscriptSegment(msgspec.Struct, frozen=True, kw_only=True):
    """start, end: seconds.  seek: where its window begins, hundredths of seconds.  tokens: ids,
    timestamps included.  The last four are its window's; avg_logprob is of the raw
    distribution, timestamps left out."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float

    @classmethod
    def of(cls, segment: Segment, *, frames_per_second: int) -> TranscriptSegment:
        return cls(
            id=segment.id,
            seek=segment.seek * 100 // frames_per_second,
            start=round(segment.start, 3),
            end=round(segment.end, 3),
            text=segment.text,
            tokens=segment.token_ids,
            temperature=segment.temperature,
            avg_logprob=segment.average_logprob,
            compression_ratio=segment.compression_ratio,
            no_speech_prob=segment.no_speech or 0.0,
        )


class TranscriptWord(msgspec.Struct, frozen=True, kw_only=True):
    """start, end: seconds."""

    word: str
    start: float
    end: float


class TranscriptReply(msgspec.Struct, frozen=True, kw_only=True):
    """task, language (its English name), duration (seconds), segments and words: of verbose_json
    only."""

    text: str
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[TranscriptSegment] | UnsetType = UNSET
    words: list[TranscriptWord] | UnsetType = UNSET
    usage: DurationUsage


@dataclass(slots=True)
class RunningText:
    """What segments say, one after another, without blanks around it."""

    text: str = ""
    _blanks: str = ""
    """Blanks at the end of the last segment; part of the text once more comes."""

    def add(self, segment: str) -> str:
        """What the text gains."""
        new = self._blanks + segment
        gained = new.rstrip() if self.text else new.strip()
        self._blanks = new[len(new.rstrip()) :]
        self.text += gained
        return gained


@dataclass(slots=True)
class Transcript:
    """What has been understood so far."""

    transcriber: Transcriber | ChatTranscriber
    segments: list[Segment] = field(default_factory=list)
    _said: RunningText = field(default_factory=RunningText)

    @property
    def text(self) -> str:
        """Text of all segments, without blanks around it."""
        return self._said.text

    @property
    def seconds(self) -> float:
        """Length of the recording, seconds."""
        return self.transcriber.seconds

    async def filled(self) -> Transcript:
        """Itself, once the recording has been understood to its end."""
        async for segments in self.transcriber.segments():
            for segment in segments:
                self.add(segment)
        return self

    def add(self, segment: Segment) -> str:
        """What the text gains."""
        self.segments.append(segment)
        return self._said.add(segment.text)

    @property
    def usage(self) -> DurationUsage:
        return DurationUsage(seconds=math.ceil(self.seconds))

    def whole(self, response_format: str) -> tuple[bytes, str]:
        """The unstreamed reply, and its content type."""
        match response_format:
            case "text":
                return f"{self.text}\n".encode(), _PLAIN
            case "srt":
                return srt(self.segments).encode(), _PLAIN
            case "vtt":
                return vtt(self.segments).encode(), "text/vtt; charset=utf-8"
            case "verbose_json":
                return msgspec.json.encode(self._verbose()), "application/json"
        reply = TranscriptReply(text=self.text, usage=self.usage)
        return msgspec.json.encode(reply), "application/json"

    def _verbose(self) -> TranscriptReply:
        of = self.transcriber
        rate = of.facts.frames_per_second
        return TranscriptReply(
            task="translate" if of.wishes.translate else "transcribe",
            language=name_of(of.language or ""),
            duration=round(self.seconds, 3),
            text=self.text,
            segments=[TranscriptSegment.of(each, frames_per_second=rate) for each in self.segments]
            if of.wishes.segments
            else UNSET,
            words=[
                TranscriptWord(word=each.text, start=round(each.start, 3), end=round(each.end, 3))
                for segment in self.segments
                for each in segment.words
            ]
            if of.wishes.words
            else UNSET,
            usage=self.usage,
        )


# Segments as SubRip (srt) and WebVTT.


class Timed(Protocol):
    """A segment. start, end: seconds."""

    @property
    def start(self) -> float: ...

    @property
    def end(self) -> float: ...

    @property
    def text(self) -> str: ...


def srt(segments: Iterable[Timed]) -> str:
    """A SubRip file: numbered from 1, hours always written."""
    return "".join(
        f"{number}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{_line(each.text)}\n\n"
        for number, each in enumerate(segments, 1)
    )


def vtt(segments: Iterable[Timed]) -> str:
    """A WebVTT file."""
    return "WEBVTT\n\n" + "".join(
        f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{_line(each.text)}\n\n"
        for each in segments
    )


def _time(seconds: float, point: str) -> str:
    thousandths = round(seconds * 1000)
    whole, thousandths = divmod(thousandths, 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{whole:02}{point}{thousandths:03}"


def _line(text: str) -> str:
    """An arrow would be a time, an empty line the end."""
    return " ".join(text.split()).replace("-->", "->")
