"""The measurement of routing: a small run of the real system, and what the workload is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest import routing


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_small_run(tmp_path: Path) -> None:
    assert routing.COMMAND.main(["--smoke", "--output", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "routing.json").read_text())
    runs = {run["policy"]: run for run in document["runs"]}
    assert set(runs) == set(routing.SMOKE.policies)
    for run in runs.values():
        assert 0 <= run["cached"] <= routing.SMOKE.best + 1e-9
        assert run["rate"] > 0
        assert 0.5 <= run["largest"] <= 1
    # One after the other: each group's beginning is computed once where its requests meet.
    assert runs["prefix"]["cached"] == pytest.approx(routing.SMOKE.best)
    assert runs["round-robin"]["cached"] < routing.SMOKE.best
    assert "prefix |" in (tmp_path / "routing.md").read_text()


def test_the_workload_shares_what_it_says() -> None:
    work = routing.SMOKE
    made = routing.prompts(work, seed=1)
    assert made == routing.prompts(work, seed=1)
    assert made != routing.prompts(work, seed=2)
    groups: dict[tuple[int, ...], list[list[int]]] = {}
    for prompt in made:
        groups.setdefault(tuple(prompt[: work.prefix]), []).append(prompt[work.prefix :])
    assert len(groups) == work.groups
    assert all(len(group) == work.each for group in groups.values())
    assert all(len(own) == work.own for group in groups.values() for own in group)
