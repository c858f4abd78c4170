"""Damaged media through the processes that prepare them: `python -m loadtest.media_fuzz --help`.

Files of the kinds that are read are damaged at random and prepared, as a gateway would, until
there were so many of them or the time is over.  Each becomes an item or is refused; told are how
fast that goes, by kind, what was said, and how many processes were brought down.  Fails where a
refusal says more than it may, or where the front end grows.

`--more` counts them on top of those of earlier runs; give each run a seed of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import itertools
import json
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

from loadtest.report import Document, Flags, Measurement, SetupError, commit, machine_line, table
from loadtest.report.facts import now
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.wire import ItemBounds, Prepare, ProcessBounds
from penstock.model.media_facts import (
    AnyPreparation,
    FixedImages,
    FrameSampling,
    LogMel,
    Pixels,
    Spectrogram,
    VideoFrames,
)
from penstock.process.memory import resident_bytes
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
TOLD, KEPT = 12, 200
"""Refusals that are told and that are kept, the most frequent."""
OF_AGAIN = "ended_again"


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
            "seconds": self.seconds,
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


async def run(flags: Flags) -> Document:
    """Raises RuntimeError."""
    pool = MediaPool(PROCESS, flags.processes)
    found, ended, chance = kinds(), Ended(), random.Random(flags.seed)
    turns = itertools.islice(itertools.cycle(found.values()), flags.files)
    started, before, begun = now(), resident_bytes() or 0, time.monotonic()
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
    own = {
        "date": f"{started:%Y-%m-%d}",
        "commit": commit(),
        "seed": flags.seed,
        "processes": flags.processes,
        "files": sum(kind.prepared + kind.refused for kind in found.values()),
        "seconds": seconds,
        "ended": brought_down,
        OF_AGAIN: len(ended.again),
        "grown_mib": grown / 2**20,
    }
    kept = {name: kind.figures() for name, kind in found.items()}
    return {"runs": [own], "kinds": kept, "said": dict(said.most_common(KEPT))}


def joined(earlier: Document, own: Document) -> Document:
    """What both counted. Raises SetupError for damage that was counted already."""
    runs = [*earlier["runs"], *own["runs"]]
    if len({each["seed"] for each in runs}) < len(runs):
        raise SetupError(f"damage with the seed {runs[-1]['seed']} is counted already")
    kinds = dict(earlier["kinds"])
    for name, figures in own["kinds"].items():
        before = kinds.get(name, {})
        kinds[name] = {key: before.get(key, 0) + value for key, value in figures.items()}
    said = Counter(earlier["said"]) + Counter(own["said"])
    return {"runs": runs, "kinds": kinds, "said": dict(said.most_common(KEPT))}


def measure(flags: Flags) -> Document:
    """Raises SetupError."""
    earlier: Document = {"runs": [], "kinds": {}, "said": {}}
    if flags.more:
        earlier = json.loads((flags.output / "media_fuzz.json").read_text(encoding="utf-8"))
    return joined(earlier, asyncio.run(run(flags)))


KINDS = {
    "kind": "{name}",
    "files": "{files:,}",
    "prepared": "{prepared:,}",
    "refused": "{refused:,}",
    "ms each": "{ms:.2f}",
}
RUNS = {
    "run": "{date}",
    "commit": "{commit}",
    "seed": "{seed}",
    "processes": "{processes}",
    "files": "{files:,}",
    "s": "{seconds:,.0f}",
    "ended their process": "{ended}",
    "again by themselves": "{ended_again}",
    "MiB grown": "{grown_mib:.0f}",
}


def markdown(document: Document) -> str:
    rows = [
        {"name": name, **figures, "ms": 1000 * figures["seconds"] / max(figures["files"], 1)}
        for name, figures in document["kinds"].items()
    ]
    told = list(document["said"].items())[:TOLD]
    said = "\n".join(f"- {count:,} × the item {words}" for words, count in told)
    runs = document["runs"]
    files, ended, again = (sum(run[key] for run in runs) for key in ("files", "ended", OF_AGAIN))
    return (
        f"{machine_line(document)}\n\n{files:,} damaged files. {ended} of them ended the process "
        f"that had them, {again} did it again by themselves, and nothing else ended.\n\n"
        f"{table(RUNS, runs)}\n\n{table(KINDS, rows)}\n{said}\n"
    )


FLAGS = {
    "--files": (1_000_000, "at most so many"),
    "--seconds": (600.0, "at most so long"),
    "--processes": (2, "that prepare media"),
    "--keep": {"type": Path, "help": "folder for files that end their process, by themselves too"},
    "--seed": (1, "of the damage"),
    "--more": (False, "on top of what was counted before"),
}
COMMAND = Measurement("media_fuzz", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
