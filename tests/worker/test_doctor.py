"""`penstock doctor`: what it says when all is well, and when the kernels are missing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_kernels.cpu import library
from penstock_worker.doctor import examine


def test_everything_is_found_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["cpu kernels"]["text"].split(",")[0] in library.INSTRUCTION_SETS
    assert Path(findings["default model"]["text"]).is_dir()
    assert re.match(r"0 \(\d+ of \d+ CPUs usable\)|none shown", findings["numa nodes"]["text"])


def test_missing_kernels_are_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "PATH", tmp_path / "nothing.so")
    library.load.cache_clear()
    try:
        assert main(["doctor"]) == 1
        [missing] = [finding for finding in examine() if not finding.ok]
    finally:
        monkeypatch.undo()
        library.load.cache_clear()
    assert missing.name == "cpu kernels"
    assert "install a C++ compiler" in missing.text
    assert "reference backend serves" in missing.text
    assert "MISS cpu kernels" in capsys.readouterr().out
