"""What every measurement writes, and the figures that they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.report.chart import chart, of_first
from loadtest.report.facts import ROOT, machine_line, now, run_facts, without_folders
from loadtest.report.figures import distribution
from loadtest.report.files import Document, Flags, Measurement, SetupError
from loadtest.report.json_text import WIDTH, json_text
from loadtest.report.table import sections, table, verdict


def draw(path: Path, document: Document) -> None:
    with chart(path, size=(3, 2)) as axes:
        axes.plot(document["rows"], [3, 4])


THIS = Measurement(
    "this",
    "A tool.",
    lambda flags: {"rows": [1, flags.streams], "model": "m"},
    lambda document: f"{machine_line(document)}; {document['model']}\n",
    {"--streams": (2, "of what")},
    draw=draw,
)


def test_a_command_has_no_folders_of_this_machine() -> None:
    given = ["--model", "/elsewhere/models/tiny.gguf", f"{ROOT}/docs", f"{ROOT}-before/python"]
    facts = run_facts("-m loadtest.this", given, now())
    assert facts["command"] == "python -m loadtest.this --model tiny.gguf ./docs python"
    assert without_folders(f"in {ROOT}: {Path.home()}/x, {ROOT}.old") == f"in .: ~/x, {ROOT}.old"


def test_a_report_is_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert THIS.main(["--streams", "3", "--output", str(folder)]) == 0
    document = json.loads((folder / "this.json").read_text())
    assert document["command"] == "python -m loadtest.this --streams 3 --output FOLDER"
    assert (document["rows"], document["model"]) == ([1, 3], "m")
    assert {"started", "ended", "commit", "machine"} <= document.keys()
    text = (folder / "this.md").read_text()
    assert text.startswith("`python -m loadtest.this --streams 3 ")
    assert (folder / "this.png").read_bytes().startswith(b"\x89PNG")
    assert text in capsys.readouterr().out


def test_a_page_is_written_again_from_its_figures(tmp_path: Path) -> None:
    folder = ["--output", str(tmp_path)]
    assert THIS.main(["--page", *folder]) == 2  # Nothing was measured yet.
    assert THIS.main(folder) == 0
    names = ("this.json", "this.md", "this.png")
    before = [(tmp_path / name).read_bytes() for name in names]
    (tmp_path / "this.md").unlink()
    assert THIS.main(["--page", *folder]) == 0
    assert [(tmp_path / name).read_bytes() for name in names] == before


def test_runs_on_several_machines_share_a_page(tmp_path: Path) -> None:
    shared = replace(
        THIS,
        head="# Runs",
        text=lambda document: f"{document['rows'][1]} rows\n",
        draw=of_first(draw),
    )
    for title, streams in (("one", "5"), ("other", "6"), ("one", "7")):
        given = ["--run", title, "--streams", streams, "--output", str(tmp_path)]
        assert shared.main(given) == 0
    assert (
        tmp_path / "this.md"
    ).read_text() == "# Runs\n\n## one\n\n7 rows\n\n## other\n\n6 rows\n"
    assert shared.main(["--output", str(tmp_path)]) == 0
    assert list(json.loads((tmp_path / "this.json").read_text()))[-1].endswith(", m")


def test_what_is_known_before_the_end_is_written_at_once(tmp_path: Path) -> None:
    written: list[str] = []

    def measure(flags: Flags) -> Iterator[Document]:
        for number in range(3):
            yield {"number": number}
            written.append((flags.output / "steps.md").read_text())

    command = Measurement("steps", "A tool.", measure, lambda document: f"{document['number']}\n")
    assert command.main(["--output", str(tmp_path)]) == 0
    assert written == ["0\n", "1\n", "2\n"]
    assert json.loads((tmp_path / "steps.json").read_text())["number"] == 2


def test_figures_of_many_values_and_of_none() -> None:
    figures = distribution(map(float, range(101)), scale=10)
    assert figures == {"count": 101, "p50": 500, "p90": 900, "p99": 990, "max": 1000}
    assert distribution([]) == {"count": 0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_a_command_writes_what_it_measured_and_says_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(flags: Flags) -> Document:
        if flags.blows == 13:
            raise SetupError("no hammer here")
        return {"blows": flags.blows}

    command = Measurement(
        "chaos",
        "A tool.",
        measure,
        lambda document: f"{machine_line(document)}: {document['blows']}\n",
        {"--blows": {"type": int, "default": 2}},
        faults=lambda document: ["too many"] * (document["blows"] > 9),
    )
    place = ["--output", str(tmp_path / "here")]
    assert command.main(place) == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["chaos.json", "chaos.md"]
    document = json.loads((tmp_path / "here" / "chaos.json").read_text())
    assert document["command"].startswith("python -m loadtest.chaos --output ")
    assert document["blows"] == 2
    assert command.main([*place, "--blows", "10"]) == 1
    assert command.main([*place, "--blows", "13"]) == 2
    assert "chaos: no hammer here" in capsys.readouterr().err


def test_nothing_has_no_figures() -> None:
    assert distribution([]) == {"count": 0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_what_is_wrong_is_one_sentence() -> None:
    assert verdict([]) == "All as it should be."
    assert verdict(["a", "b"]) == "Not as it should be: a; b."
    assert sections(["a", "", "b\n\n"]) == "a\n\nb\n"


def test_a_table_shows_rows_as_its_columns_say() -> None:
    shown = table({"who": "{name}", "ms": "{p50:.1f}"}, [{"name": "a", "p50": 1.25, "p99": 9.0}])
    assert shown == "| who |  ms |\n| --- | --: |\n| a   | 1.2 |\n"


def test_a_result_file_has_few_lines_and_all_that_was_given() -> None:
    samples = [0.03119218100649036 * number for number in range(200)]
    given = {
        "one": {"p50": 1.5, "none": None, "words": "more than ASCII: µ"},
        "samples": samples,
        "rows": [{"number": number, "name": "n" * 60} for number in range(3)],
        "empty": [{}, [], ""],
    }
    text = json_text(given)
    assert json.loads(text) == given
    lines = text.splitlines()
    assert len(lines) == 1 + 1 + 1 + 5 + 1 + 1
    assert all(len(line) <= WIDTH for line in lines if "samples" not in line)
    assert 'more than ASCII: µ"' in text
