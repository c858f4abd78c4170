"""The count of schemas that are served, on a few files that stand for a corpus."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest import schema_corpus
from loadtest.schema_corpus import is_valid, reason, to_markdown
from penstock.process.machine import describe_machine

FACTS = {"command": "c", "started": "2026-11-22T00:00:00", "machine": describe_machine()}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


def write(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def test_a_complaint_is_counted_without_what_is_the_schemas_own() -> None:
    one = reason('at #/properties/a: branches 0 and 1 of "oneOf" may both hold\nmore')
    assert one == reason("at #/properties/b/c: branches 2 and 13 of 'oneOf' may both hold")


def test_the_judge_is_the_standard() -> None:
    assert is_valid({"format": "date"}, "tomorrow")
    assert not is_valid({"type": "integer"}, "1")
    assert is_valid({"type": "no such type"}, 1)  # it can't say


def test_the_page_says_shares_of_all_files_that_hold_a_schema() -> None:
    schemas = {"served": 90, "over 64 KiB": 6, "not": 4, "(no schema in the file)": 5}
    counts = {"schemas": schemas, "documents": {"wrong": 1}, "wrong": ["x.json"]}
    page = to_markdown({**FACTS, "counts": counts})
    assert "| served  |  90 | 90.0% |" in page
    assert "| refused |  10 | 10.0% |" in page
    assert "x.json" in page


@pytest.mark.slow
def test_files_are_compiled_and_their_documents_followed(tmp_path: Path) -> None:
    tests = [{"data": {"n": 1}, "valid": True}, {"data": {"n": "1"}, "valid": False}]
    files = [
        write(tmp_path, "good", {"schema": NUMBER, "tests": tests}),
        # A corpus may be wrong: what it calls invalid here is not.
        write(tmp_path, "odd", {"schema": NUMBER, "tests": [{"data": {"n": 1}, "valid": False}]}),
        write(tmp_path, "long", {"schema": {"enum": ["x" * 270_000]}}),
        write(tmp_path, "bad", {"schema": {"type": "no such type"}}),
        write(tmp_path, "none", {}),
    ]
    counts = schema_corpus.counted(files)
    assert counts["schemas"].pop("served") == 2
    assert counts["schemas"].pop("over 256 KiB") == 1
    assert sum(counts["schemas"].values()) == 2
    assert counts["documents"] == {
        "valid, admitted": 1,
        "invalid, not admitted": 1,
        "invalid by an annotation, admitted": 1,
    }


def test_a_file_that_cannot_be_read_is_no_smaller_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[FakeJudge] = []

    class FakeJudge:
        def __init__(self, _: Path) -> None:
            self.refused: Counter[str] = Counter()
            self.documents: Counter[str] = Counter()
            self.wrong: list[str] = []

        def look(self, file: Path) -> None:
            json.loads(file.read_bytes())
            self.refused["served"] += 1

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(schema_corpus, "Judge", FakeJudge)
    monkeypatch.setattr(schema_corpus, "prepare", lambda _: tmp_path)
    monkeypatch.setattr(schema_corpus, "usable_cores", lambda: 2)
    files = [write(tmp_path, f"good{number}", {}) for number in range(5)]
    assert schema_corpus.counted(files)["schemas"] == {"served": 5}
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(json.JSONDecodeError):
        schema_corpus.counted([*files, broken])
    assert len(closed) == 4
