"""What every measurement writes, and the figures that they share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from loadtest.report import files
from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.report.figures import distribution
from loadtest.report.files import Document, Measurement, Report, SetupError, parser
from loadtest.report.json_text import WIDTH, json_text
from loadtest.report.readme import section
from loadtest.report.table import sections, table, verdict


def draw(path: Path) -> None:
    with chart(path, size=(3, 2)) as axes:
        axes.plot([1, 2], [3, 4])


@pytest.fixture
def flags(tmp_path: Path) -> argparse.Namespace:
    made: argparse.Namespace = parser("-m loadtest.this", "A tool.", section=True).parse_args(
        ["--output", str(tmp_path / "new" / "folder"), "--write-readme"]
    )
    return made


def test_a_report_is_three_files_and_a_section(
    flags: argparse.Namespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- this: begin (by hand) -->\nold\n<!-- this: end -->\n")
    monkeypatch.setattr(files, "README", readme)
    report = Report("this", "-m loadtest.this", flags, ["--streams", "3"])
    report.finish(
        {"rows": [1, 2]},
        lambda facts: f"{machine_line(facts)}; {facts['model']}\n",
        draw=draw,
        section="this",
        caption="a curve",
        model="m",
    )
    document = json.loads(report.path("json").read_text())
    assert document["command"] == "python -m loadtest.this --streams 3"
    assert (document["rows"], document["model"]) == ([1, 2], "m")
    assert {"started", "ended", "commit", "machine"} <= document.keys()
    text = report.path("md").read_text()
    assert text.startswith("`python -m loadtest.this --streams 3` on ")
    assert report.path("png").read_bytes().startswith(b"\x89PNG")
    assert section(readme, "this") == f"{text}\n![a curve](results/this.png)"
    assert text in capsys.readouterr().out


def test_without_the_flag_the_readme_stays(flags: argparse.Namespace) -> None:
    flags.write_readme = False
    Report("this", "-m loadtest.this", flags, []).finish({}, lambda facts: "x\n", section="none")


def test_figures_of_many_values_and_of_none() -> None:
    figures = distribution(map(float, range(101)), scale=10)
    assert figures == {"count": 101, "p50": 500, "p90": 900, "p99": 990, "max": 1000}
    assert distribution([]) == {"count": 0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_a_command_writes_what_it_measured_and_says_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(flags: argparse.Namespace) -> Document:
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
