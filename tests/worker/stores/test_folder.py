"""Segments of KV blocks on disk: what was written is found again, and nothing else is."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StartupError
from penstock_worker.stores.disk import HEADER_BYTES, SegmentFolder
from penstock_worker.stores.interface import StoredLayout

PAYLOAD = 5_000
RECORD = HEADER_BYTES + PAYLOAD
LAYOUT = StoredLayout("model", PAYLOAD)


def key(number: int) -> bytes:
    return blake2b(str(number).encode(), digest_size=32).digest()


def contents(number: int) -> bytes:
    return (key(number) * (PAYLOAD // 32 + 1))[:PAYLOAD]


def opened(root: Path, limit: int = 64 * RECORD, name: str = "model") -> SegmentFolder:
    return SegmentFolder(root, StoredLayout(name, PAYLOAD), limit)


def filled(root: Path, numbers: range, **more: Any) -> SegmentFolder:
    folder = opened(root, **more)
    assert all(folder.write(key(n), contents(n)) for n in numbers)
    return folder


def files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.kv"))


def test_another_life_finds_what_was_written_whether_the_first_ended_well_or_not(
    tmp_path: Path,
) -> None:
    filled(tmp_path, range(10))  # As after kill -9: never closed.
    closed = filled(tmp_path, range(10, 13))
    closed.close()
    later = opened(tmp_path)
    assert later.leading([key(n) for n in (*range(13), 99)]) == 13
    assert [later.read(key(n)) for n in range(13)] == [contents(n) for n in range(13)]
    assert later.read(key(99)) is None
    for path in files(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(files(tmp_path)[0].parent.stat().st_mode) == 0o700


def test_workers_read_what_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_worker.stores.disk.REFRESH_SECONDS", 0.0)
    one, other = opened(tmp_path), opened(tmp_path)
    for number in range(9):
        writer, reader = (one, other) if number % 2 else (other, one)
        assert writer.write(key(number), contents(number))
        assert reader.leading([key(number)]) == 1
        assert reader.read(key(number)) == contents(number)


@pytest.mark.parametrize("at", range(0, RECORD, 97))
def test_a_flipped_byte_is_a_miss_wherever_it_is(tmp_path: Path, at: int) -> None:
    filled(tmp_path, range(4), limit=16 * RECORD * 4).close()
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[RECORD + at] ^= 0x10
    path.write_bytes(data)
    folder = opened(tmp_path)
    assert [folder.read(key(n)) for n in range(4)] == [contents(0), None, contents(2), contents(3)]


@pytest.mark.parametrize("length", [0, 50, RECORD - 1, RECORD + 20, 2 * RECORD - 1])
def test_what_was_being_written_is_no_block(tmp_path: Path, length: int) -> None:
    filled(tmp_path, range(4), limit=16 * RECORD * 4).close()
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    folder = opened(tmp_path)
    whole = length // RECORD
    assert folder.leading([key(n) for n in range(4)]) == whole
    assert [folder.read(key(n)) for n in range(whole)] == [contents(n) for n in range(whole)]


def test_other_models_and_other_sizes_find_nothing(tmp_path: Path) -> None:
    filled(tmp_path, range(4)).close()
    assert opened(tmp_path, name="other").leading([key(0)]) == 0
    assert len(SegmentFolder(tmp_path, StoredLayout("model", PAYLOAD + 8), 64 * RECORD)) == 0


def test_it_holds_no_more_than_it_may_and_forgets_what_was_used_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_worker.stores.disk.REFRESH_SECONDS", 0.0)
    limit = 32 * RECORD  # Segments of two.
    one = filled(tmp_path, range(20), limit=limit)
    other = opened(tmp_path, limit, "other")
    for number in range(20, 50):
        assert one.leading([key(0)]) == 1  # Used all the time.
        assert other.write(key(number), contents(number))
        assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
    assert one.read(key(0)) == contents(0)
    assert one.leading([key(2)]) == 0
    assert other.read(key(49)) == contents(49)


def test_a_full_disk_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (RECORD, before[1]))
    try:
        assert not folder.write(key(0), contents(0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path) == []
    assert not folder.write(key(0), contents(0)), "it has to wait before it tries again"
    monkeypatch.setattr(folder, "_not_before", 0.0)
    assert folder.write(key(0), contents(0))
    assert folder.read(key(0)) == contents(0)


def test_settings_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=f"a KV block takes {RECORD:,}"):
        opened(tmp_path, RECORD - 1)
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="can't be used"):
        opened(tmp_path / "file")


def test_what_is_deleted_under_its_writer_is_closed_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_worker.stores.disk.REFRESH_SECONDS", 0.0)
    folder = filled(tmp_path, range(2))
    (first,) = files(tmp_path)
    first.unlink()
    assert folder.leading([key(0)]) == 0  # It has looked, and forgotten.
    assert folder.read(key(0)) is None
    assert folder.write(key(2), contents(2))
    assert [folder.leading([key(n)]) for n in range(3)] == [0, 0, 1]
    assert files(tmp_path) != [first]
    folder.close()


def test_what_is_called_like_a_segment_and_is_none_stops_nothing(tmp_path: Path) -> None:
    """Neither reading, nor writing, nor that room is made."""
    limit = 32 * RECORD  # Segments of two.
    filled(tmp_path, range(3), limit=limit).close()
    folder = files(tmp_path)[0].parent
    (folder / "a.kv").symlink_to("/nowhere")
    (folder / "b.kv").mkdir()
    (folder / "c.kv").write_bytes(b"\x01" * 3 * RECORD)
    (folder / "d.kv").touch()
    os.mkfifo(folder / "e.kv")
    os.mkfifo(folder / "f.new")
    (folder / "g.new").mkdir()
    later = opened(tmp_path, limit)
    assert later.leading([key(n) for n in range(3)]) == 3
    assert [later.read(key(n)) for n in range(3)] == [contents(n) for n in range(3)]
    assert all(later.write(key(n), contents(n)) for n in range(3, 50))
    assert later.read(key(49)) == contents(49)
    assert sum(path.stat().st_size for path in files(tmp_path) if path.is_file()) <= limit


def test_segments_of_another_user_are_read_and_left_alone() -> None:
    """Where the folder is shared by a group: they can't be written, nor can it be noted that they
    were used."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        filled(root, range(3)).close()
        (path,) = files(root)
        path.chmod(0o444)
        (root / "lock").chmod(0o666)
        for folder in (root, path.parent):
            folder.chmod(0o777)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            later = opened(root)
            assert later.leading([key(n) for n in range(3)]) == 3
            assert later.write(key(3), contents(3))
        finally:
            os.seteuid(user)
        assert len(files(root)) == 2


def test_a_file_that_was_moved_to_another_models_folder_holds_nothing_there(
    tmp_path: Path,
) -> None:
    """A block's key says nothing of the model."""
    filled(tmp_path, range(3)).close()
    other = filled(tmp_path, range(3, 6), name="other")
    other.close()
    (mine,), (theirs,) = ((tmp_path / name).glob("*.kv") for name in ("model", "other"))
    aside = tmp_path / "aside"
    for source, target in ((mine, aside), (theirs, mine), (aside, theirs)):
        source.rename(target)
    for name in ("model", "other"):
        folder = opened(tmp_path, name=name)
        assert [folder.leading([key(n)]) for n in range(6)] == [0] * 6
        assert folder.write(key(0), contents(0))
        assert folder.read(key(0)) == contents(0)


def test_a_folder_that_is_deleted_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_worker.stores.disk.REFRESH_SECONDS", 0.0)
    folder = filled(tmp_path, range(3))
    shutil.rmtree(tmp_path / "model")
    assert folder.leading([key(0)]) == 0
    assert folder.write(key(0), contents(0))
    assert folder.read(key(0)) == contents(0)


def test_a_later_life_goes_on_in_the_segment_of_one_that_has_ended(tmp_path: Path) -> None:
    first = filled(tmp_path, range(2))
    other = filled(tmp_path, range(2, 3))  # The first one still writes.
    assert len(files(tmp_path)) == 2
    first.close()
    later = filled(tmp_path, range(3, 5))
    assert len(files(tmp_path)) == 2
    assert [later.read(key(n)) for n in range(5)] == [contents(n) for n in range(5)]
    other.close()
    assert opened(tmp_path).leading([key(n) for n in range(5)]) == 5


def test_what_was_never_finished_is_removed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    left = tmp_path / "model" / "0.new"
    left.write_bytes(bytes(RECORD))
    filled(tmp_path, range(1))
    assert not left.exists()


def test_a_segment_deleted_since_the_last_look_stops_no_writing(tmp_path: Path) -> None:
    writer = filled(tmp_path, range(2))
    reader = opened(tmp_path)  # Knows a segment that nobody writes any more, once that one ends.
    files(tmp_path)[0].unlink()
    assert writer.write(key(2), contents(2)), "whose own segment is gone"
    writer.close()
    files(tmp_path)[0].unlink()
    assert reader.write(key(3), contents(3)), "who would have gone on in it"
    assert reader.read(key(3)) == contents(3)
