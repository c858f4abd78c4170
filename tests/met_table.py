"""How often the examples of each property met its case when it was last counted: a table that is
committed (met.tsv)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("met.tsv")


class Row(NamedTuple):
    """A case of a property."""

    test: str
    case: str
    met: int
    examples: int


def recorded(file: Path = FILE) -> list[Row]:
    """All rows, in the order of their tests."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t"))
    return [Row(test, case, int(met), int(examples)) for test, case, met, examples in rows[1:]]


def record(found: Iterable[Row], file: Path = FILE) -> None:
    """Replaces the rows of the properties that were counted, and drops those of which the file is
    gone. The cases of one test count together."""
    counts: dict[tuple[str, str], list[int]] = {}
    for test, case, met, examples in found:
        of = counts.setdefault((test.partition("[")[0], case), [0, 0])
        of[0] += met
        of[1] += examples
    counted = {test for test, _ in counts}
    root = FILE.parents[1]
    kept = [
        row
        for row in recorded(file)
        if row.test not in counted and (root / row.test.partition("::")[0]).exists()
    ]
    rows = kept + [Row(test, case, *of) for (test, case), of in counts.items()]
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(sorted(rows))
    file.write_text(text.getvalue(), encoding="utf-8")
