"""Recordings of requests with media: they replay, and hold nothing of what a picture shows."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from penstock.config.settings import RecordSettings
from penstock_engine.record.framing import log_files, payloads
from penstock_engine.record.recorder import CoreRecorder, recording
from penstock_engine.record.replay import replay
from penstock_planning.simulate.commands import Traffic
from penstock_planning.simulate.metrics import Slo
from tests.engine.fake_media import picture
from tests.engine.histories.media import MediaWalker
from tests.engine.media.media_requests import ask, harness
from tests.engine.walked_harness import Seeded
from tests.engine.walks import check_replay

SECRET = b"what the picture shows"


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_a_replay_decides_alike(tmp_path: Path, seed: int) -> None:
    _, steps = check_replay(MediaWalker(Seeded(seed)), tmp_path, 150)
    assert steps > 40


def test_no_byte_of_an_item_is_recorded(tmp_path: Path) -> None:
    """Not in an event, and not in a snapshot that is taken while some wait to be sent."""
    h = harness()
    h.by_file = False
    h.prepared = lambda size: SECRET
    with recording(h.core, RecordSettings(record_dir=str(tmp_path))) as core:
        assert isinstance(core, CoreRecorder)
        h.core = core  # type: ignore[assignment]
        front = h.connect()
        h.start_worker()
        core._most = 0  # A file for each step.
        ask(h, front, picture(1, 4, len(SECRET)))
        h.run()
    files = log_files([str(tmp_path)])
    assert len(files) > 3
    for path in files:
        with open(path, "rb") as file:
            _, state, *events = payloads(file, str(path))
        assert SECRET not in zlib.decompress(state)
        assert all(SECRET not in event for event in events)
        assert replay(path).difference is None


def test_a_simulation_can_read_it(tmp_path: Path) -> None:
    h = harness()
    with recording(h.core, RecordSettings(record_dir=str(tmp_path))) as core:
        h.core = core
        front = h.connect()
        h.start_worker()
        ask(h, front, picture(1))
        h.run()
    traffic = Traffic(Slo(1.0, 1.0))
    for path in log_files([str(tmp_path)]):
        traffic.read(path)
    assert [one.num_prompt for one in traffic.trace] == [9]
