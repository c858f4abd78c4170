"""The table of faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SECTION = re.compile(r"^## (\w+)", re.MULTILINE)
NAMED = re.compile(r"`((?:\.\./)?[\w/]+\.py)(?:::(test_\w+)(?:\[[^`]*\])?)?`")
"""A file of tests, and a test of it unless the row means all of them."""


def named() -> list[tuple[str, str]]:
    """(file, test) of every row, without a test where the whole file is meant; a section's heading
    begins with its folder."""
    parts = SECTION.split((TESTS / "FAULTS.md").read_text(encoding="utf-8"))
    found = []
    for folder, text in zip(parts[1::2], parts[2::2], strict=True):
        place = f"{folder}/" if (TESTS / folder).is_dir() else ""
        found += [(place + file, test) for file, test in NAMED.findall(text)]
    return found


def test_there_are_rows() -> None:
    assert len(named()) > 100
    assert [file for file, test in named() if not test]


def test_the_tests_exist() -> None:
    missing = []
    for file, test in sorted(set(named())):
        path = (TESTS / file).resolve()
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        if not re.search(rf"def {test}\(" if test else r"def test_", source):
            missing.append(f"{file} has no {test or 'test'}")
    assert missing == []
