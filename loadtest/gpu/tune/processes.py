"""What the processes of one tuning run share: their flags, and what was measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from loadtest.gpu.job import process_parser
from loadtest.gpu.tune import NAMES, advice


def parser(module: str) -> argparse.ArgumentParser:
    """module: of this package."""
    made = process_parser(f"loadtest.gpu.tune.{module}")
    made.add_argument("--kernels", nargs="+", default=NAMES)
    made.add_argument("--parent", type=int, help="ends with this process")
    return made


def lines_file(work: Path) -> Path:
    return work / "lines.jsonl"


class Lines:
    """The file of what was measured: all candidates, and for each that had its turn a line
    {"trying": number}, one for each shape, and {"done": number}. A present choice has a further
    turn in every process, before anything is timed beside it."""

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
    def broken_off(self) -> int | None:
        """In whose turn the last process ended."""
        turns = (row for row in reversed(self.rows) if {"trying", "done"} & row.keys())
        return next(turns, {}).get("trying")

    @property
    def dropped(self) -> set[str]:
        """Settings whose present choice has failed: nothing is timed beside it."""
        return {row["setting"] for row in advice.present_failures(self.rows)}
