"""Pictures that a front end prepares in a second, by the number of its processes."""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.config.settings import MediaSettings
from penstock.media.desk import MediaDesk
from penstock.media.sources import MediaSource
from penstock.model.media_facts import MediaFacts
from penstock.prepare import load_manifest, prepare
from testing.trained.seeing.pictures import EVERY, draw

SIZES = {"448 × 448, PNG": (448, 448, "PNG"), "2016 × 1512, JPEG": (2016, 1512, "JPEG")}
IN_FLIGHT = 8


def prepared_per_second(model: Path, count: int) -> list[dict[str, Any]]:
    """For each size, with one process and with two; every picture is another one."""
    with tempfile.TemporaryDirectory() as cache:
        facts = load_manifest(prepare(str(model), cache_dir=cache)).media
    if facts is None:
        raise ValueError(f"{model} takes no pictures")
    rows = []
    for name, (width, height, kind) in SIZES.items():
        files = [_file(number, width, height, kind) for number in range(count)]
        one, two = (asyncio.run(_rate(facts, files, processes)) for processes in (1, 2))
        rows.append({"name": name, "one": one, "two": two})
    return rows


def _file(number: int, width: int, height: int, kind: str) -> bytes:
    saved = io.BytesIO()
    # Drawn smaller: what is in it costs nothing to prepare, and much to draw.
    small = draw(EVERY[number % len(EVERY)], 200_000 + number, width // 4, height // 4)
    small.resize((width, height)).save(saved, kind)
    return saved.getvalue()


async def _rate(facts: MediaFacts, files: list[bytes], processes: int) -> float:
    desk = MediaDesk(MediaSettings(media_processes=processes, mm_processor_cache_gb=0))
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(data: bytes) -> None:
        async with room:
            lease = desk.lease("")
            try:
                await desk.prepare(facts, [MediaSource("picture", data=data)], lease)
            finally:
                lease.close()

    try:
        # The processes are started with the first pictures.
        await asyncio.gather(*(one(data + bytes(1)) for data in files[:IN_FLIGHT]))
        begun = time.perf_counter()
        await asyncio.gather(*(one(data) for data in files))
        return len(files) / (time.perf_counter() - begun)
    finally:
        desk.close()
