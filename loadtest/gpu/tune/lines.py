"""What the process that measures writes, and the next one and the report read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadtest.gpu.tune import advice


def lines_file(work: Path) -> Path:
    return work / "lines.jsonl"


class Lines:
    """The file of what was measured: all candidates and what their settings move, and for each
    that had its turn a line {"trying": number}, one for each shape, and {"done": number}.

    {"building": shape} and {"built": shape} stand around what a process does with a present choice
    before anything is timed beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows = [json.loads(line) for line in path.open()] if path.is_file() else []

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    @property
    def done(self) -> set[int]:
        return {row["done"] for row in self.rows if "done" in row}

    @property
    def broken_off(self) -> set[int]:
        """Tried, and never ended."""
        return {row["trying"] for row in self.rows if "trying" in row} - self.done

    @property
    def building(self) -> bool:
        """Whether the last process ended in a present choice's first call."""
        last = next((row for row in reversed(self.rows) if {"building", "built"} & row.keys()), {})
        return "building" in last

    @property
    def dropped(self) -> set[str]:
        """Settings whose present choice has failed: nothing is timed beside it."""
        return {row["setting"] for row in advice.present_failures(self.rows)}
