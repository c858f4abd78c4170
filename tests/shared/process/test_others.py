"""What other processes take of the processors, by invented numbers and the real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.process import others
from penstock.process.others import Others

TICK = 1 / os.sysconf("SC_CLK_TCK")


def write(stat: Path, **times: int) -> None:
    """Ticks of all processors."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    words = [str(times.get(name, 0)) for name in names]
    stat.write_text(f"cpu  {' '.join(words)} 0 0\ncpu0 1 2 3\n")


@pytest.mark.parametrize(
    ("times", "own", "share"),
    [
        ({"user": 100, "idle": 100}, 0, 0.5),
        ({"user": 100, "idle": 100}, 100, 0.0),
        ({"user": 150, "idle": 40, "iowait": 10}, 50, 0.5),
        ({"steal": 60, "idle": 140}, 0, 0.3),
        ({"nice": 20, "system": 20, "irq": 5, "softirq": 5, "idle": 50}, 10, 0.4),
        ({"idle": 200}, 3, 0.0),
    ],
)
def test_what_is_neither_idle_nor_ours_is_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: dict[str, int],
    own: int,
    share: float,
) -> None:
    used = [7.0, 7.0 + own * TICK]
    monkeypatch.setattr(others.time, "process_time", lambda: used.pop(0))
    write(tmp_path / "stat")
    counted = Others(tmp_path / "stat")
    write(tmp_path / "stat", **times)
    assert counted.share() == pytest.approx(share)


@pytest.mark.parametrize("text", [None, "", "cpu", "cpu a b c d e f g h"])
def test_a_system_that_does_not_say_counts_as_idle(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert Others(tmp_path / "stat").share() == 0.0


def test_the_real_one_is_read() -> None:
    assert sum(others._times(others.STAT)) > 0
    assert 0.0 <= Others().share() <= 1.0
