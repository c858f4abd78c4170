"""Digests of weights, which front ends ask the engine core's process for."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.prepare.folder import sample_digest
from penstock.protocol.call_values import decode_value
from penstock.protocol.from_frontend import HashWeights, Watch
from penstock.protocol.to_frontend import Called
from penstock_engine.sessions.weights_hashing import MAX_ASKED, WeightsHashing
from testing.serving import wait_until

FRONT = b"front"


def hashing(
    *files: Path, mmproj: str = "", samples: dict[str, str] | None = None
) -> WeightsHashing:
    weights = SimpleNamespace(files=tuple(map(str, files)), mmproj=mmproj)
    model = SimpleNamespace(name="m", digest="d", weights=weights, samples=samples or {})
    facts = SimpleNamespace(model=model)
    core: Any = SimpleNamespace(state=SimpleNamespace(frontends={FRONT: object()}, facts=facts))
    return WeightsHashing(core)


def answered(made: WeightsHashing, *calls: int) -> list[Called]:
    """What the calls are answered, in the order in which it comes."""
    for call in calls:
        assert made.takes(FRONT, HashWeights(call))
    came: list[tuple[bytes, Called]] = []

    def all_came() -> bool:
        came.extend(made.answers())
        return len(came) >= len(calls)

    wait_until(all_came)
    assert {session for session, _ in came} == {FRONT}
    return [answer for _, answer in came]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_each_file_has_its_digest(tmp_path: Path) -> None:
    one, two, tower = (tmp_path / name for name in ("1.safetensors", "2.safetensors", "m.gguf"))
    for number, file in enumerate((one, two, tower)):
        file.write_bytes(bytes([number]) * 100_000)
    (answer,) = answered(hashing(one, two, mmproj=str(tower)), 7)
    assert (answer.call, answer.rank, answer.ranks, answer.code) == (7, 0, 1, "")
    assert decode_value(answer.result) == {
        file.name: digest(file.read_bytes()) for file in (one, two, tower)
    }


def test_a_file_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "w.gguf"
    file.write_bytes(b"one")
    made = hashing(file)
    first = answered(made, 1)
    stat = os.stat(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert answered(made, 2)[0].result == first[0].result, "it was not read"
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert decode_value(answered(made, 3)[0].result) == {"w.gguf": digest(b"two")}


def test_a_file_that_was_replaced_is_not_that_of_the_served_weights(tmp_path: Path) -> None:
    """The worker has the former one in memory."""
    file, other = tmp_path / "w.gguf", tmp_path / "w.new"
    file.write_bytes(b"one")
    samples = {str(file): sample_digest(file).hex()}
    early, late = (hashing(file, samples=samples) for _ in range(2))
    first = answered(early, 1)[0].result
    other.write_bytes(b"two")
    other.replace(file)
    (refused,) = answered(late, 2)
    assert refused.code == "failed"
    assert "isn't what it was" in refused.error
    assert answered(early, 3)[0].result == first


def test_a_file_that_is_gone_is_said(tmp_path: Path) -> None:
    answers = answered(hashing(tmp_path / "none.gguf"), 1, 2)
    assert [answer.code for answer in answers] == ["failed", "failed"]
    assert "No such file" in answers[0].error


def test_calls_that_wait_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "w.gguf"
    os.mkfifo(file)  # Reading waits until somebody writes.
    made = hashing(file)
    for call in range(MAX_ASKED + 3):
        made.takes(FRONT, HashWeights(call))
    refused = made.answers()
    assert [answer.code for _, answer in refused] == ["unavailable"] * 3
    file.write_bytes(b"at last")
    came: list[Any] = []
    wait_until(lambda: came.extend(made.answers()) or len(came) == MAX_ASKED)
    assert {answer.code for _, answer in came} == {""}


def test_other_messages_are_the_cores(tmp_path: Path) -> None:
    made = hashing(tmp_path / "w")
    assert not made.takes(FRONT, Watch(1.0))
    assert made.takes(b"refused", HashWeights(1)), "of a session that the core has not taken"
    assert made.answers() == []
