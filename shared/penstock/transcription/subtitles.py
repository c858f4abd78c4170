"""Segments as SubRip (srt) and WebVTT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


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
