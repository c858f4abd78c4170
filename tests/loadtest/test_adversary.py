"""The adversary: a small run, its requests, and what it makes of what it saw."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path

import pytest

from loadtest.adversary.__main__ import COMMAND, faults, sessions_lost
from loadtest.adversary.edges import KINDS, attack
from loadtest.report.figures import percentile
from loadtest.report.memory import Memory

CONTEXT = 1024


def test_a_seed_gives_the_same_requests_and_all_kinds_come() -> None:
    first, second = (random.Random(7) for _ in range(2))
    made = [attack(first, CONTEXT) for _ in range(400)]
    assert made == [attack(second, CONTEXT) for _ in range(400)]
    assert {each.kind for each in made} == set(KINDS)
    for each in made:
        json.dumps(each.body)
        assert ("messages" in each.body) == each.path.endswith("chat/completions")


def test_memory_is_read_by_quarters_and_restarts_are_counted() -> None:
    memory = Memory()
    for second in range(12):
        memory.look({"engine": 1 if second < 5 else 2}, float(second))
    assert memory.restarts == 1
    memory.rss["engine"] = [1000.0, 1000.0, 1000.0, *(10.0 + n for n in range(9))]
    early, late = memory.drift("engine", 3.0) or (0.0, 0.0)
    assert (early, late) == (11.0, 17.0)
    assert memory.drift("engine", 10.0) is None


def test_lost_sessions_are_the_lines_that_tell_of_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        'event="session opened"\nevent="session with the engine core ended" reason=x\n'
        'event="session with the engine ended" reason=y\n'
    )
    assert len(sessions_lost(log)) == 2


def figures(**changes: object) -> dict[str, object]:
    beside = {"whole": 5, "refused": 0, "broken": 0}
    good = {"ratio_p99": 2.0, "beside": beside, "sessions_lost": 0, "restarts": 0}
    return {**good, "memory": {"engine": {"growth": 0.01}}, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ratio_p99": 3.1}, "3.10 times"),
        ({"ratio_p99": float("nan")}, "nan times"),
        ({"beside": {"whole": 5, "refused": 1, "broken": 0}}, "1 of alice's streams refused"),
        ({"beside": {"whole": 5, "refused": 0, "broken": 2}}, "2 of alice's streams broken"),
        ({"beside": {"whole": 0, "refused": 0, "broken": 0}}, "no stream"),
        ({"sessions_lost": 1}, "1 sessions lost"),
        ({"restarts": 1}, "1 processes restarted"),
        ({"memory": {"engine": {"growth": 0.2}}}, "engine grew by 20.0 %"),
    ],
)
def test_each_fault_of_an_attack_is_said(changes: dict[str, object], words: str) -> None:
    (fault,) = faults(figures(**changes))
    assert words in fault
    assert not faults(figures())


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(101))), 0.99) == 99.0
    assert percentile([], 0.5) == 0.0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_small_run(tmp_path: Path) -> None:
    try:
        importlib.import_module("penstock_kernels.cpu.library").load()
    except ImportError as error:
        pytest.skip(str(error))
    flags = ["--seconds", "4", "--quiet-seconds", "2", "--streams", "2", "--at-a-time", "6"]
    COMMAND.main([*flags, "--output", str(tmp_path), "--", "--max-model-len", "512"])
    document = json.loads((tmp_path / "adversary.json").read_text())
    found = document["figures"]
    assert found["quiet"]["pieces"] > 0
    assert found["beside"]["pieces"] > 0
    assert sum(sum(each.values()) for each in found["answers"].values()) > 0
    assert set(found["answers"]) <= set(KINDS)
    assert set(document["samples"]["rss_mib"]) == {"gateway 0", "fork-server", "engine", "worker 0"}
    text = (tmp_path / "adversary.md").read_text()
    assert "beside mallory" in text
    assert "| engine " in text
    assert (tmp_path / "adversary.png").read_bytes().startswith(b"\x89PNG")
