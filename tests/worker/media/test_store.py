"""Items that come as files or in chunks: whole ones are ready, all others fail by name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from penstock.media.prepared import write
from penstock.protocol.from_worker import MediaFailed, MediaReady, MediaTaken
from penstock.protocol.media import MAX_MEDIA_CHUNK
from penstock.protocol.worker_resources import LoadMedia, LoadMediaChunk
from penstock_worker.media.store import MediaStore, StoreBounds
from penstock_worker.media.unfit import UnfitItem

ARRAYS = {"pixels": np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)}
CONTENT = write(ARRAYS)
WORK = 7


def check(tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
    if rows != 4:
        raise UnfitItem(f"it becomes 4 rows, and {rows} were announced")
    return WORK


@pytest.fixture
def store() -> Iterator[MediaStore]:
    made = MediaStore(check, StoreBounds(rows=10, size=3 * len(CONTENT)))
    yield made
    made.close()


def message(path: str = "", content: bytes = CONTENT, name: str = "a", **said: Any) -> LoadMedia:
    told = {
        "rows": 4,
        "size": len(content),
        "digest": hashlib.sha256(content).hexdigest(),
    }
    return LoadMedia(name * 64, "image", path=path, **(told | said))


class Answers:
    def __init__(self) -> None:
        self._told: SimpleQueue[Any] = SimpleQueue()
        self.tell: Callable[[Any], None] = self._told.put

    def next(self) -> Any:
        return self._told.get(timeout=60)


def test_a_file_is_ready_and_is_taken_once(store: MediaStore, tmp_path: Path) -> None:
    file, answers = tmp_path / "item", Answers()
    file.write_bytes(CONTENT)
    store.load(message(str(file)), answers.tell)
    assert answers.next() == MediaReady("a" * 64, WORK)
    file.unlink()
    taken = store.take("a" * 64)
    assert taken is not None
    assert np.array_equal(taken[0]["pixels"], ARRAYS["pixels"])
    assert store.take("a" * 64) is None


def test_chunks_are_ready_with_the_last(store: MediaStore) -> None:
    answers = Answers()
    store.load(message(), answers.tell)
    for start in range(0, len(CONTENT), 50):
        store.add(LoadMediaChunk("a" * 64, start), CONTENT[start : start + 50])
        last = start + 50 >= len(CONTENT)
        told = MediaReady("a" * 64, WORK) if last else MediaTaken("a" * 64, start + 50)
        assert answers.next() == told


def failure(store: MediaStore, sent: LoadMedia) -> MediaFailed:
    answers = Answers()
    store.load(sent, answers.tell)
    found = answers.next()
    assert isinstance(found, MediaFailed), found
    assert store.take(sent.name) is None
    return found


def test_a_file_that_isnt_the_item_fails(store: MediaStore, tmp_path: Path) -> None:
    whole, cut, other = (tmp_path / name for name in ("whole", "cut", "other"))
    whole.write_bytes(CONTENT)
    cut.write_bytes(CONTENT[:-1])
    other.write_bytes(CONTENT[:-1] + b"?")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(whole)
    os.mkfifo(pipe)
    noise = b"\x90" + bytes(99)
    broken = tmp_path / "broken"
    broken.write_bytes(noise)
    codes = {
        str(tmp_path / "none"): "unreachable",
        str(link): "unreachable",
        str(tmp_path): "damaged",
        str(pipe): "damaged",
        str(cut): "damaged",
        str(other): "damaged",
    }
    for path, code in codes.items():
        found = failure(store, message(path))
        assert found.code == code, path
        assert str(tmp_path) not in found.reason
    assert failure(store, message(str(broken), noise)).code == "damaged"
    assert failure(store, message(str(whole), rows=5)).code == "unfit"


def test_what_goes_beyond_the_bounds_is_refused_before_it_is_read(store: MediaStore) -> None:
    for said in ({"rows": 11}, {"rows": 0}, {"size": 0}, {"size": 1 << 60}):
        assert failure(store, message("/none", **said)).code == "unfit"
    answers = Answers()
    for name in "abc":
        store.load(message(name=name), answers.tell)  # three that wait for their bytes
    assert failure(store, message(name="d")).code == "unfit"
    store.drop("a" * 64)
    store.load(message(name="d"), answers.tell)
    store.add(LoadMediaChunk("d" * 64, 0), CONTENT[:9])
    assert answers.next() == MediaTaken("d" * 64, 9)


@pytest.mark.parametrize(
    ("offset", "frame"),
    [
        (1, CONTENT[1:9]),
        (0, b""),
        (0, CONTENT + b"?"),
    ],
)
def test_chunks_out_of_order_fail(store: MediaStore, offset: int, frame: bytes) -> None:
    answers = Answers()
    store.load(message(), answers.tell)
    store.add(LoadMediaChunk("a" * 64, offset), frame)
    assert answers.next().code == "damaged"
    store.add(LoadMediaChunk("a" * 64, 0), CONTENT)  # of an item that is forgotten


def test_a_chunk_has_a_size() -> None:
    large = MediaStore(check, StoreBounds(rows=10, size=1 << 30))
    content, answers = write({"pixels": np.zeros(2 * MAX_MEDIA_CHUNK, np.uint8)}), Answers()
    large.load(message(content=content), answers.tell)
    large.add(LoadMediaChunk("a" * 64, 0), content[: MAX_MEDIA_CHUNK + 1])
    assert answers.next().code == "damaged"
    large.close()


def test_an_item_that_is_dropped_while_it_is_read_is_not_told(
    store: MediaStore, tmp_path: Path
) -> None:
    """What is left of a session must not be there in the next."""
    file, gone, answers = tmp_path / "item", Answers(), Answers()
    os.mkfifo(file)
    store.load(message(str(tmp_path / "item")), gone.tell)
    store.clear()
    real = tmp_path / "real"
    real.write_bytes(CONTENT)
    store.load(message(str(real), name="b"), answers.tell)
    assert answers.next() == MediaReady(
        "b" * 64, WORK
    )  # one thread reads, so the first one is done
    assert gone._told.empty() or isinstance(gone.next(), MediaFailed)
    assert store.take("a" * 64) is None
