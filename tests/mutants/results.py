"""What became of each fault when it was last tried: a table that is committed."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import Mutant, listed
from tests.mutants.trial import FOUND, Found

FILE = Path(__file__).with_name("results.tsv")
VERDICTS = (*FOUND, "survived", "out of time")


class Row(NamedTuple):
    """A fault's."""

    name: str
    verdict: str
    by: str
    """The test that failed first."""
    tried: str
    """The day."""


def recorded() -> dict[str, Row]:
    """All rows, by the fault's name."""
    if not FILE.exists():
        return {}
    with FILE.open(encoding="utf-8", newline="") as lines:
        rows = [Row(*line) for line in csv.reader(lines, delimiter="\t")]
    return {row.name: row for row in rows[1:]}


def record(found: Mapping[str, Found]) -> None:
    """Replaces the rows of what was tried; drops those of faults that are no longer listed."""
    today = datetime.now(UTC).date().isoformat()
    rows = recorded() | {name: Row(name, *each, today) for name, each in found.items()}
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows[each.name] for each in listed() if each.name in rows)
    FILE.write_text(text.getvalue(), encoding="utf-8")


def table(mutants: Iterable[Mutant], found: Mapping[str, Found]) -> str:
    """How many were found in which way, by area, and the names of those that weren't at once.
    Equivalent ones are counted apart, whatever became of them."""
    counts: dict[str, Counter[str]] = {}
    late = []
    for mutant in mutants:
        verdict = found[mutant.name].verdict
        kept = "equivalent" if mutant.equivalent else verdict
        counts.setdefault(mutant.area, Counter())[kept] += 1
        if kept in VERDICTS[1:]:
            late.append(f"{verdict}: {mutant.area} {mutant.name}")
    counts["all"] = sum(counts.values(), Counter())
    heads = (*VERDICTS, "equivalent")
    lines = [f"{'':<24}" + "".join(f"{head:>12}" for head in heads)]
    for area, of in counts.items():
        lines.append(f"{area:<24}" + "".join(f"{of[head]:>12}" for head in heads))
    return "\n".join([*lines, *late])
