"""Damaged media through the processes that prepare them: `python -m loadtest.media_fuzz --help`.

Files of the kinds that are read are damaged at random and prepared, as a gateway would, until
there were so many of them or the time is over.  Each becomes an item or is refused; told are how
fast that goes, by kind, what was said, and how many processes were brought down.  Fails where a
refusal says more than it may, or where the front end grows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import io
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from loadtest.report.facts import machine_line
from loadtest.report.files import Document, Measurement
from loadtest.report.table import table
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.wire import ItemBounds, Prepare, ProcessBounds
from penstock.media_facts import (
    AnyPreparation,
    FixedImages,
    FrameSampling,
    LogMel,
    Pixels,
    Spectrogram,
    VideoFrames,
)
from penstock.process_memory import resident_bytes
from testing.damage import damaged

PIXELS = Pixels(resample=3, rescale=1 / 255)
PICTURES = FixedImages(pixels=PIXELS, height=28, width=28, rows=4)
VIDEOS = VideoFrames(
    pixels=PIXELS,
    min_pixels=784,
    max_pixels=784,
    patch=14,
    merge=2,
    sampling=FrameSampling(num_frames=4),
)
MEL = LogMel(sampling_rate=16_000, bins=80, n_fft=400, hop=160, seconds=1, row_frames=2)
SOUNDS = Spectrogram(mel=MEL)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MOVIES = (("mpeg4", "mp4"), ("mjpeg", "avi"), ("libvpx-vp9", "webm"), ("libx264", "matroska"))
RECORDINGS = (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", None))
BOUNDS = ItemBounds(pixels=200_000, seconds=10.0, frames=16, all_pixels=1 << 20)
PROCESS = ProcessBounds(memory=1 << 30, cpu=5.0)
LONGEST_WORDS = 300
"""Characters of a refusal."""
GROWTH = 256 << 20
"""Bytes by which the front end may grow."""
OF_ENDED = ("takes longer than", "brought down", "needs more memory")
"""Words of a refusal whose file has ended its process."""
MOST_ENDED = 1000
"""Files that are tried again."""
TOLD = 12
"""Refusals that are told, the most frequent."""


@dataclass(slots=True)
class Kind:
    """What became of one kind's files."""

    preparation: AnyPreparation
    file: bytes
    prepared: int = 0
    refused: int = 0
    seconds: float = 0.0
    said: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, float]:
        done = self.prepared + self.refused
        return {
            "files": done,
            "prepared": self.prepared,
            "refused": self.refused,
            "ms": 1000 * self.seconds / max(done, 1),
        }


def kinds() -> dict[str, Kind]:
    """Small files of each kind that can be decoded here: the smaller, the more of the damage hits
    what describes the rest."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    found = {}
    for name in FORMATS:
        out = io.BytesIO()
        Image.fromarray(noise).save(out, name)
        found[name] = Kind(PICTURES, out.getvalue())
    found |= {name: _recording(name, subtype) for name, subtype in RECORDINGS}
    if importlib.util.find_spec("av") is not None:
        found |= {f"{codec} in {name}": _movie(noise, codec, name) for codec, name in MOVIES}
    return found


def _recording(name: str, subtype: str | None) -> Kind:
    noise = np.random.default_rng(0).normal(0, 0.1, 800).astype(np.float32)
    out = io.BytesIO()
    soundfile.write(out, noise, 16_000, format=name, subtype=subtype)
    return Kind(SOUNDS, out.getvalue())


def _movie(noise: np.ndarray, codec: str, name: str) -> Kind:
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=name) as file:
        stream = file.add_stream(codec, rate=5)
        stream.width, stream.height, stream.gop_size = 32, 24, 2
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(4):
            rows = np.roll(noise, number, axis=1)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(rows, format="rgb24")))
        file.mux(stream.encode())
    return Kind(VIDEOS, out.getvalue())


@dataclass(slots=True)
class Ended:
    """Files that ended the process that had them, and those that did it again when they were tried
    by themselves: a machine that is held for a while ends others."""

    first: list[tuple[Kind, bytes]] = field(default_factory=list)
    again: list[tuple[Kind, bytes]] = field(default_factory=list)

    async def repeat(self, pool: MediaPool) -> None:
        for kind, data in self.first:
            before = pool.counts.ended
            with contextlib.suppress(Unpreparable):
                await pool.prepare(Prepare(kind.preparation, data, BOUNDS))
            if pool.counts.ended > before:
                self.again.append((kind, data))

    def keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number, (_, data) in enumerate(self.again):
            (folder / f"{number}").write_bytes(data)


async def _work(
    pool: MediaPool, turns: Iterator[Kind], chance: random.Random, end: float, ended: Ended
) -> None:
    for kind in turns:
        begun = time.monotonic()
        if begun >= end:
            return
        data = damaged(kind.file, chance)
        try:
            await pool.prepare(Prepare(kind.preparation, data, BOUNDS))
            kind.prepared += 1
        except Unpreparable as error:
            kind.refused += 1
            kind.said[str(error)] += 1
            if any(words in str(error) for words in OF_ENDED) and len(ended.first) < MOST_ENDED:
                ended.first.append((kind, data))
        kind.seconds += time.monotonic() - begun


async def run(flags: argparse.Namespace) -> Document:
    """Raises RuntimeError."""
    pool = MediaPool(PROCESS, flags.processes)
    found, ended, chance = kinds(), Ended(), random.Random(flags.seed)
    turns = itertools.islice(itertools.cycle(found.values()), flags.files)
    before, begun = resident_bytes() or 0, time.monotonic()
    try:
        end = begun + flags.seconds
        work = (_work(pool, turns, chance, end, ended) for _ in range(flags.processes))
        await asyncio.gather(*work)
        seconds, brought_down = time.monotonic() - begun, pool.counts.ended
        await ended.repeat(pool)
    finally:
        pool.close()
    if flags.keep is not None:
        ended.keep(flags.keep)
    grown = (resident_bytes() or 0) - before
    said: Counter[str] = sum((kind.said for kind in found.values()), Counter())
    longest = max(map(len, said), default=0)
    if longest > LONGEST_WORDS or grown > GROWTH:
        raise RuntimeError(f"the longest refusal has {longest} characters; {grown} bytes grown")
    done = sum(kind.prepared + kind.refused for kind in found.values())
    return {
        "seed": flags.seed,
        "processes": flags.processes,
        "files": done,
        "seconds": seconds,
        "files_per_second": done / seconds,
        "ended": brought_down,
        "ended_again": len(ended.again),
        "grown_mib": grown / 2**20,
        "kinds": {name: kind.figures() for name, kind in found.items()},
        "said": dict(said.most_common(TOLD)),
    }


def measure(flags: argparse.Namespace) -> Document:
    return asyncio.run(run(flags))


COLUMNS = {
    "kind": "{name}",
    "files": "{files:,}",
    "prepared": "{prepared:,}",
    "refused": "{refused:,}",
    "ms each": "{ms:.2f}",
}


def markdown(document: Document) -> str:
    rows = [{"name": name, **figures} for name, figures in document["kinds"].items()]
    said = "\n".join(f"- {count:,} × the item {words}" for words, count in document["said"].items())
    return (
        f"{machine_line(document)}\n\n{document['files']:,} damaged files in "
        f"{document['seconds']:.0f} s through {document['processes']} processes: "
        f"{document['files_per_second']:.0f} each second. {document['ended']} of them ended the "
        f"process that had them, {document['ended_again']} did it again by themselves; the "
        f"front end grew by {document['grown_mib']:.0f} MiB.\n\n"
        f"{table(COLUMNS, rows)}\n{said}\n"
    )


FLAGS = {
    "--files": {"type": int, "default": 1_000_000, "help": "at most so many"},
    "--seconds": {"type": float, "default": 600.0, "help": "at most so long"},
    "--processes": {"type": int, "default": 2, "help": "that prepare media"},
    "--keep": {"type": Path, "help": "folder for files that end their process, by themselves too"},
    "--seed": {"type": int, "default": 1, "help": "of the damage"},
}
COMMAND = Measurement("media_fuzz", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
