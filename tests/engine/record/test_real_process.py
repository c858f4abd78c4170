"""The engine's real process, recorded: what it wrote replays, also after it was killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.config.settings import RecordSettings
from penstock.protocol.from_frontend import Watch
from penstock.protocol.live import Snapshot
from penstock_engine.record.framing import log_files
from penstock_engine.record.replay import replay
from tests.engine import small_facts
from tests.engine.engine_process import Engine, write_prepared
from tests.engine.test_process import run_one


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Records into a folder beside its sockets."""
    facts = small_facts.facts()
    settings = RecordSettings(record_dir=str(tmp_path / "log"))
    config = msgspec.structs.replace(facts.config, record=settings)
    recorded = msgspec.structs.replace(facts, config=config)
    monkeypatch.setattr(small_facts, "facts", lambda: recorded)
    running = Engine(write_prepared(tmp_path))
    yield running
    running.close()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_process_recorded_replays(engine: Engine, signum: signal.Signals) -> None:
    process = engine.start()
    engine.until(engine.ready)
    for number in range(1, 5):
        run_one(engine, number)
    (path,) = log_files([str(engine.folder / "log")])
    # What was recorded in the last quarter of a second may be lost with a process that is killed.
    engine.until(lambda: replay(path).steps > 10)
    process.send_signal(signum)
    process.communicate(timeout=60)
    done = replay(path)
    assert done.difference is None
    assert done.steps > 10
    if signum == signal.SIGTERM:
        assert done.torn is None
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_who_watches_is_no_part_of_a_recording(engine: Engine) -> None:
    process = engine.start()
    engine.until(engine.ready)
    engine.front.client.send(Watch(20.0))
    first = engine.until(lambda: engine.front.take(Snapshot))
    for number in range(1, 5):
        run_one(engine, number)
    shown = engine.until(lambda: engine.front.take(Snapshot))
    while shown.steps.total < 4:
        shown = engine.until(lambda: engine.front.take(Snapshot))
    assert round(shown.uptime - first.uptime, 3) >= 0.5
    assert len(shown.steps.rows) == shown.steps.total, "each was settled while somebody watched"
    assert [row.name for row in shown.frontends.rows] == ["test"]
    assert shown.worker.device == "test"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    (path,) = log_files([str(engine.folder / "log")])
    done = replay(path)
    assert done.difference is None
    assert done.torn is None
    assert b"watch" not in path.read_bytes()
