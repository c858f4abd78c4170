"""The benchmark's worker, and how many launches a plain decode step may take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.worker_host.__main__ import figures, report

ROOT = Path(__file__).resolve().parents[2]
FACTS = {
    "command": "python -m loadtest.worker_host",
    "started": "2026-01-01T00:00:00",
    "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**30, "python": "3.11"},
    "versions": {"torch": "2"},
}
MOST_LAUNCHES = 10
FOR_CUTS = 1
"""One more where a row asks for top_p: it lists what may be kept."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_plain_step_is_a_replay_and_few_launches() -> None:
    """In a process of its own: launches are replaced there, and Triton's interpreter has none."""
    cases = [
        {"sequences": 5, "kind": "greedy"},
        {"sequences": 5, "kind": "sampled", "ending": 2},
        {"sequences": 3, "kind": "adjusted"},
        {"sequences": 5, "kind": "sampled", "chunk": 250},
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.worker_host.child", "20"],
        input=json.dumps(cases),
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [{**figures([turn, turn]), "case": turn["case"], "version": "now"} for turn in turns]
    assert [row["steps"] for row in rows] == [40] * 4
    assert [row["replays"] for row in rows] == [1] * 4
    plain, drawn, adjusted, mixed = (row["launches"] for row in rows)
    assert 5 < plain <= MOST_LAUNCHES
    assert 5 < drawn <= MOST_LAUNCHES + FOR_CUTS
    assert 5 < mixed <= MOST_LAUNCHES + FOR_CUTS
    assert adjusted > drawn
    for row in rows:
        assert 0 < sum(part["p50"] for part in row["parts"].values()) < 2 * row["p50"]
    text = report({**FACTS, "rows": rows})
    for name in ("5 sampled, 2 end and come", "5 sampled, beside 250 of a prompt"):
        assert f"| {name} " in text
