"""Recordings of random histories, and what replay says of whole, torn, damaged and other ones."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config.settings import RecordSettings
from penstock.protocol.common import SessionTerms
from penstock.protocol.from_frontend import ExpectPrompt
from penstock_engine.core import EngineCore
from penstock_engine.record import recorder
from penstock_engine.record.framing import MAGIC, Damaged, framed, log_files, payloads
from penstock_engine.record.recorder import STEP, CoreRecorder, recording
from penstock_engine.record.replay import replay
from penstock_engine.sessions.effects import Effects
from tests.engine.harness import Harness
from tests.engine.small_facts import facts
from tests.engine.walked_harness import Seeded, make_harness
from tests.engine.walker import Walker


def recorded_walk(
    folder: Path,
    seed: int,
    length: int,
    *,
    measured: bool = True,
    drafts: bool = False,
    **settings: Any,
) -> Walker:
    """A walk over a core that is recorded; the recording is closed. measured: whether the worker
    may say what steps took; drafts: whether it can draft."""
    choose = Seeded(seed)
    walker = Walker(make_harness(choose), choose)
    if drafts:
        walker.h.proposes = lambda: choose.whole(0, 4)
        walker.h.drafts = lambda most: (most, choose.whole(0, most))
    if not measured:
        walker.h.step_seconds = lambda: 0.0
    options = RecordSettings(record_dir=str(folder), **settings)
    with recording(walker.h.core, options) as core:
        walker.h.core = core
        walker.connect()
        for _ in range(length):
            walker.walk()
    return walker


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    recorded_walk(folder, 3, 500)
    (found,) = log_files([str(folder)])
    return found


@pytest.fixture
def log(recorded: Path, tmp_path: Path) -> Path:
    """A copy, which a test may damage."""
    return Path(shutil.copy(recorded, tmp_path))


@pytest.mark.parametrize("seed", range(8))
def test_a_replay_decides_alike(tmp_path: Path, seed: int) -> None:
    walker = recorded_walk(tmp_path, seed, 500, drafts=seed % 2 == 1)
    assert (walker.h.core.state.counts.kept_tokens > 0) == (seed % 2 == 1)
    (path,) = log_files([str(tmp_path)])
    done = replay(path)
    assert done.difference is None
    assert done.torn is None
    assert done.steps > 300
    assert done.same_program


def test_an_end_that_a_slow_disk_does_not_reach_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    write = recorder.Writer._write

    def waiting(self: recorder.Writer, data: bytes) -> None:
        disk.wait(60)
        write(self, data)

    monkeypatch.setattr(recorder.Writer, "_write", waiting)
    monkeypatch.setattr(recorder, "CLOSE_TIMEOUT", 0.1)
    writer = recorder.Writer(tmp_path, keep=1)
    writer.begin("file", b"header", b"snapshot")
    writer.append(bytes(1000))
    writer.close()
    assert "1014 bytes could not be written" in (writer.failed or "")
    disk.set()
    writer._thread.join(60)


def test_each_file_of_a_long_recording_replays_by_itself(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(CoreRecorder, "__init__", _small_files(CoreRecorder.__init__))
    recorded_walk(tmp_path, 4, 1500, record_files=100)
    paths = log_files([str(tmp_path)])
    assert len(paths) > 4
    results = [replay(path) for path in reversed(paths)]
    assert all(done.difference is None and done.torn is None for done in results)
    assert [done.header.number for done in results] == list(range(len(paths), 0, -1))


def test_only_so_many_files_are_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(CoreRecorder, "__init__", _small_files(CoreRecorder.__init__))
    recorded_walk(tmp_path, 4, 1500, record_files=3)
    assert len(list(tmp_path.iterdir())) == 3
    assert all(replay(path).difference is None for path in tmp_path.iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def _small_files(init: Any) -> Any:
    def make(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self._most = 20_000
        self._size = self._most

    return make


def test_the_first_difference_is_named(log: Path, monkeypatch: Any) -> None:
    """A core with another policy: it admits nobody while five sequences' worth of steps passed."""
    plan = EngineCore._plan
    calls = 0

    def lazy(self: EngineCore, now: float) -> None:
        nonlocal calls
        calls += 1
        if not 40 <= calls < 46:
            plan(self, now)

    monkeypatch.setattr(EngineCore, "_plan", lazy)
    difference = replay(log).difference
    assert difference is not None
    assert difference.step >= 40
    assert difference.parts[0] == "to_workers"
    assert "work" in difference.recorded
    assert difference.recorded != difference.replayed


def test_a_changed_digest_is_found_at_its_step(log: Path, tmp_path: Path) -> None:
    with open(log, "rb") as file:
        records = list(payloads(file, "log"))
    steps = [
        (at, decoded)
        for at, decoded in enumerate(map(msgspec.msgpack.decode, records[2:]), start=2)
        if decoded[0] == STEP and decoded[2] is not None and decoded[2][0][1]
    ]
    at, decoded = steps[30]
    digests = decoded[2][0]
    digests[1] = bytes(16)
    records[at] = msgspec.msgpack.encode(decoded)
    changed = tmp_path / "changed"
    changed.write_bytes(MAGIC + b"".join(map(framed, records)))
    difference = replay(changed).difference
    assert difference is not None
    assert difference.record == at + 1
    assert difference.parts == ["to_frontends"]
    assert difference.now == decoded[1]


def test_a_cut_tail_is_told_and_the_rest_replays(log: Path, tmp_path: Path) -> None:
    data = log.read_bytes()
    whole = replay(log)
    for cut in (1, 5, 9, 200):
        torn = tmp_path / "torn"
        torn.write_bytes(data[:-cut])
        done = replay(torn)
        assert done.torn is not None or data[:-cut][-1:] == b""
        assert done.difference is None
        assert 0 < done.records < whole.records


def test_damage_is_named(log: Path, tmp_path: Path) -> None:
    data = bytearray(log.read_bytes())
    with log.open("rb") as file:
        longest = max(list(payloads(file, "log"))[2:], key=len)
    data[data.rindex(longest) + len(longest) // 2] ^= 1
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    with pytest.raises(Damaged, match="checksum of record"):
        replay(bad)
    bad.write_bytes(b"something else entirely")
    with pytest.raises(Damaged, match="is not a recording"):
        replay(bad)
    bad.write_bytes(bytes(log.read_bytes()[:400]))
    with pytest.raises(Damaged, match="within its snapshot"):
        replay(bad)


def test_a_core_that_raised_raises_again(tmp_path: Path, monkeypatch: Any) -> None:
    class Crash(RuntimeError):
        pass

    step = EngineCore.step

    def crashing(self: EngineCore, now: float) -> Effects:
        if self.state.scheduling.num_steps == 5:
            raise Crash
        return step(self, now)

    monkeypatch.setattr(EngineCore, "step", crashing)
    harness = Harness()
    with recording(harness.core, RecordSettings(record_dir=str(tmp_path))) as core:
        harness.core = core
        harness.start_worker(32)
        harness.submit(harness.connect(), [1, 2, 3], max_tokens=20, ignore_eos=True)
        with pytest.raises(Crash):
            harness.run()
    (path,) = log_files([str(tmp_path)])
    assert replay(path).difference is None
    monkeypatch.setattr(EngineCore, "step", step)
    difference = replay(path).difference
    assert difference is not None


@pytest.mark.parametrize("fault", ["folder is a file", "disk full", "backlog"])
def test_what_cannot_be_written_stops_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: Any, caplog: Any, fault: str
) -> None:
    folder = tmp_path / "log"
    if fault == "folder is a file":
        folder.write_text("in the way")
    elif fault == "disk full":
        monkeypatch.setattr(recorder.Writer, "_write", _no_space)
    else:
        monkeypatch.setattr(recorder, "MAX_BACKLOG", 10)
    walker = recorded_walk(folder, 3, 300)
    walker.end()
    warnings = [record for record in caplog.records if record.getMessage() == "recording stopped"]
    assert len(warnings) == 1


def _no_space(self: Any, data: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_a_state_that_cannot_be_written_stops_the_recording(tmp_path: Path, caplog: Any) -> None:
    class Unheard:
        pass

    harness = Harness()
    harness.core.state.frontends.extra = Unheard()  # type: ignore[attr-defined]
    with recording(harness.core, RecordSettings(record_dir=str(tmp_path))) as core:
        core.step(1.0)
        core.step(2.0)
    assert [record.getMessage() for record in caplog.records] == ["recording stopped"]


def test_a_step_that_cannot_be_written_stops_the_recording(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    def broken(effects: Effects) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(recorder, "decision_of", broken)
    recorded_walk(tmp_path, 3, 300).end()
    warnings = [record for record in caplog.records if record.getMessage() == "recording stopped"]
    assert len(warnings) == 1


def test_without_a_folder_the_core_is_used_as_it_is() -> None:
    core = EngineCore(facts())
    with recording(core, RecordSettings()) as used:
        assert used is core


class _Salted(msgspec.Struct, frozen=True, tag="submit"):
    request: int
    cache_salt: str | None = None
    tenant: str = ""
    session: SessionTerms | None = None


def test_salts_are_replaced_before_the_core_sees_them(monkeypatch: Any) -> None:
    monkeypatch.setattr(recorder, "Submit", _Salted)
    monkeypatch.setattr(recorder, "REDACTED", ("cache_salt",))
    redact = recorder.Redaction()
    salted = _Salted(1, "secret", "acme", SessionTerms("Jane Doe", 9.0))
    (one, now), (two, _) = redact.apply((salted, 1.0)), redact.apply((_Salted(2, "secret"), 2.0))
    assert one.session.retention_s == 9.0
    assert one.session.id != "Jane Doe"
    assert now == 1.0
    assert one.cache_salt == two.cache_salt
    assert len(one.cache_salt) == 32
    assert (one.tenant, two.tenant) == ("acme", "")
    assert salted.cache_salt == "secret"
    assert recorder.Redaction().apply((salted, 1.0))[0].cache_salt != one.cache_salt
    (expected, _) = redact.apply((ExpectPrompt(3, [1], "secret"), 3.0))
    assert expected == ExpectPrompt(3, [1], one.cache_salt), "it has the same keys"


def test_the_cost_per_step_is_small(tmp_path: Path) -> None:
    """Prints a figure; the bound only says that nothing is grossly wrong, and is of processor time:
    the machine may be busy."""
    seconds = {}
    for name, settings in (
        ("plain", RecordSettings()),
        ("recorded", RecordSettings(record_dir=str(tmp_path))),
    ):
        seconds[name] = _seconds_per_step(settings)
    cost = 1e6 * (seconds["recorded"] - seconds["plain"])
    print(f"recording costs {cost:.0f} µs a step of 64 sequences, {1e6 * seconds['plain']:.0f} µs")
    assert cost < 20_000
    shutil.rmtree(tmp_path)


def _seconds_per_step(settings: RecordSettings) -> float:
    harness = Harness(max_model_len=400, max_num_seqs=64, max_num_batched_tokens=4096)
    with recording(harness.core, settings) as core:
        harness.core = core
        harness.start_worker(6400)
        front = harness.connect()
        for number in range(64):
            harness.submit(front, [1, 2], max_tokens=60, ignore_eos=True, seed=number)
        times = []
        while harness.plans:
            result = harness.worker.execute(harness.plans.popleft()[0])  # type: ignore[union-attr]
            begun = time.thread_time()
            core.worker_received(harness.worker_session, result, harness.now)  # type: ignore[arg-type]
            effects = core.step(harness.now)
            times.append(time.thread_time() - begun)
            harness.plans.extend((message, []) for _, message, _ in effects.to_workers)  # type: ignore[misc]
    return sorted(times)[len(times) // 2]
