"""What the measurement of scores under load counts as different."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from loadtest.same_scores.__main__ import OURS, compared, faults
from loadtest.same_scores.tasks import CHOICES, write_tasks


def heard(**requests: Any) -> dict[str, Any]:
    return {"heard": requests, "scores": {"choices acc": 0.5, "texts bits_per_byte": 1.25}}


FIRST = heard(a=["yes", [None, -1.0, -2.0], [None, -1.0, -0.5]], b=["no", [-3.0], [-3.0]])


def test_the_same_again() -> None:
    found = compared(FIRST, FIRST)
    assert found["requests"] == 2
    assert found["logprobs"] == 6  # those of first tokens are no numbers
    assert not any(found[name] for name in ("requests_differing", "differing", "nats"))
    assert not found["scores_differing"]


def test_the_last_bit_of_one() -> None:
    least = -2.0000000000000004
    other = heard(a=["yes", [None, -1.0, least], [None, -1.0, -0.5]], b=["no", [-3.0], [-3.0]])
    found = compared(FIRST, other)
    assert (found["requests_differing"], found["differing"]) == (1, 1)
    assert found["nats"] == -2.0 - least
    assert found["texts_differing"] == 0


def test_what_only_one_has_differs() -> None:
    other = heard(a=["yes", [None, -1.0, -2.0], [None, -1.0, -0.5]], c=["no", [-3.0], [-3.0]])
    found = compared(FIRST, other)
    assert (found["requests_differing"], found["differing"], found["texts_differing"]) == (1, 2, 1)
    shorter = heard(b=["no", [], []])
    assert compared(FIRST, shorter)["differing"] == 2


def test_scores_and_faults() -> None:
    other = FIRST | {"scores": {"choices acc": 0.5, "texts bits_per_byte": 1.5}}
    row = compared(FIRST, other)
    assert row["scores_differing"] == 1
    assert faults({"rows": [row | {"system": OURS}]})
    assert not faults({"rows": [row | {"system": "another"}]})
    assert not faults({"rows": [compared(FIRST, FIRST) | {"system": OURS}]})


def test_tasks_have_data_and_choices_differ(tmp_path: Path) -> None:
    names = write_tasks(tmp_path)
    for name in [*names["completions"], *names["chat"]]:
        task = yaml.safe_load((tmp_path / f"{name}.yaml").read_text(encoding="utf-8"))
        data = Path(task["dataset_kwargs"]["data_files"]["test"])
        rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
        assert rows
        assert task["task"] == name
    for _, *choices in CHOICES:
        assert len(set(choices)) == 4
