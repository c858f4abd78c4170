"""Damaged files, many of them: each is prepared or refused in our words, and nothing grows.

`--long` damages thousands of times as many.
"""

from __future__ import annotations

import random

import psutil
import pytest

from penstock.media.picture import FORMATS, BadPicture, open_picture
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.prepared import read
from penstock.media.wire import ItemBounds, Prepare, ProcessBounds
from testing.damage import damaged
from tests import thinning
from tests.shared.media.pictures import PREPARATION, picture, saved
from tests.shared.media.test_picture import BAD

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 200_000
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of broken tags


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_pictures_or_refused(kind: str) -> None:
    assert kind in FORMATS
    chance = random.Random(KINDS.index(kind))
    whole = saved(picture(64, 48), kind)
    complaints: set[str] = set()
    for _ in range(thinning.part(20_000, 1 / 200)):
        try:
            found = open_picture(damaged(whole, chance), MAX_PIXELS)
        except BadPicture as error:
            complaints.add(str(error))
        else:
            assert found.mode == "RGB"
            assert 0 < found.width * found.height <= MAX_PIXELS
    assert complaints
    assert max(map(len, complaints)) < 200


async def test_helpers_survive_what_they_are_given() -> None:
    pool = MediaPool(ProcessBounds(memory=1 << 30, cpu=20.0), 1)
    chance = random.Random(9)
    files = [saved(picture(64, 48), kind) for kind in KINDS] + [data for data, _ in BAD.values()]
    try:
        await pool.prepare(Prepare(PREPARATION, files[0], ItemBounds(MAX_PIXELS)))
        process = psutil.Process(pool.pids[0])
        before = process.memory_info().rss
        complaints = {""}
        for number in range(thinning.part(20_000, 1 / 200)):
            data = damaged(files[number % len(files)] or b"\0", chance)
            try:
                answer = await pool.prepare(Prepare(PREPARATION, data, ItemBounds(MAX_PIXELS)))
            except Unpreparable as error:
                complaints.add(str(error))
            else:
                assert read(answer.data)["pixels"].shape == (1, 28, 28, 3)
        assert max(map(len, complaints)) < 200
        if pool.pids == [process.pid]:
            assert process.memory_info().rss - before < 64 << 20
    finally:
        pool.close()
