"""The simulation of cells: its step cost beside what was recorded, its page from its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.cells.__main__ import COMMAND
from loadtest.cells.page import text
from loadtest.cells.recorded import LONG, MANY, ONE, PROMPTS, as_flag, cost_of, predicted, recorded
from loadtest.report.files import RESULTS
from penstock_planning.simulate.cost import StepCost, parse


def test_a_cost_is_found_again_from_the_rates_that_it_gives() -> None:
    cost = StepCost(base_ms=17.0, token_ms=0.0, hidden_ms=1.9, sequence_ms=1.1, read_ms=0.0007)
    alone = 1000 * cost.seconds(1, 1, 0)
    rates = {
        ONE: 1000 / alone,
        LONG: 1000 / (alone + cost.read_ms * (4096 - 64)),
        PROMPTS: 1000 / cost.hidden_ms,
        MANY: 64 * 64 / (64 * 64 * 0.0019 + 64 * cost.seconds(64, 64, 0)),
    }
    found = cost_of(rates)
    for name in ("base_ms", "hidden_ms", "sequence_ms", "read_ms"):
        assert getattr(found, name) == pytest.approx(getattr(cost, name), rel=1e-6)
    assert parse(as_flag(found)) == cost


def test_the_cost_foretells_what_it_was_not_made_from() -> None:
    rates = recorded()
    for name, rate in predicted(cost_of(rates)).items():
        assert rate == pytest.approx(rates[name], rel=0.1)


def test_the_page_is_what_its_figures_say(tmp_path: Path) -> None:
    document = json.loads((RESULTS / "cells.json").read_text(encoding="utf-8"))
    assert text(document) == (RESULTS / "cells.md").read_text(encoding="utf-8")
    assert COMMAND.main(["--page", "--output", str(tmp_path)]) == 2
    by_title = {run["title"]: run["windows"] for run in document["day"]}
    assert {len(windows) for windows in by_title.values()} == {6}
    sums = {title: sum(w["requests"] for w in windows) for title, windows in by_title.items()}
    assert len(set(sums.values())) == 1, "the same requests, however cells are chosen"
    assert all(w["refused"] == 0 for windows in by_title.values() for w in windows)
