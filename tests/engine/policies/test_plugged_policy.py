"""The documentation's example of a scheduling policy, installed as a package of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.plugins import SCHEDULING_POLICIES
from penstock.config.settings import RecordSettings, SchedulerSettings
from penstock.errors import StartupError
from penstock_engine.policies.registry import make_policy
from penstock_engine.policies.tenants import Tenants
from penstock_engine.record.framing import log_files
from penstock_engine.record.recorder import recording
from penstock_engine.record.replay import replay
from testing.examples import install, write_package
from tests.engine.harness import Harness
from tests.engine.walked_harness import Seeded, make_harness
from tests.engine.walker import Walker

NAME = "shortest-first"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(install("policy", folder)))
    return folder


@pytest.mark.usefixtures("site")
def test_shorter_prompts_come_first() -> None:
    h = Harness(scheduling_policy=NAME, max_num_seqs=1)
    front = h.connect()
    for length in (9, 3, 7, 2, 3):
        h.submit(front, [length] * length, max_tokens=2, ignore_eos=True)
    h.start_worker()
    h.run()
    assert h.worker is not None
    started = [new.tokens[0] for plan in h.worker.log for new in plan.admitted]
    assert started == [2, 3, 3, 7, 9]


@pytest.mark.usefixtures("site")
def test_any_history_keeps_the_books_and_is_replayed(tmp_path: Path) -> None:
    choose = Seeded(11)
    walker = Walker(make_harness(choose, policy=NAME), choose)
    with recording(walker.h.core, RecordSettings(record_dir=str(tmp_path / "log"))) as core:
        walker.h.core = core
        walker.connect()
        for _ in range(400):
            walker.walk()
    (path,) = log_files([str(tmp_path / "log")])
    done = replay(path)
    assert done.difference is None
    assert done.steps > 50


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("pst_policies:Other", "whose name is other"),
        ("pst_policies:Nothing", "is not a complete Policy"),
        ("pst_policies:Missing", "can't be loaded"),
    ],
)
def test_one_that_will_not_do(
    value: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pst_policies.py").write_text(
        "from penstock_engine.policies.first_come import FirstCome\n"
        "class Other(FirstCome):\n    name = 'other'\n"
        "class Nothing:\n    pass\n"
    )
    write_package(tmp_path, "pst-policies", "1.0", {SCHEDULING_POLICIES: {"mine": value}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StartupError, match=says):
        make_policy(SchedulerSettings(scheduling_policy="mine"), Tenants())
