"""Parsers that other packages bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock.parsing import reasoning_parser, tool_parser

MODULE = """
from penstock.parsing import CallArguments, CallBegin, Content, ReasoningParser, ToolParser

class Shouted(ToolParser):
    def push(self, text):
        return [CallBegin(text[1:]), CallArguments("{}")] if text[:1] == "!" else [Content(text)]
    def finish(self):
        return []

class Silent(ReasoningParser):
    def push(self, text):
        return []
    def finish(self):
        return []

class Neither:
    pass
"""
POINTS = """
[penstock.tool_parsers]
shouted = pst_plugin:Shouted
neither = pst_plugin:Neither
missing = pst_plugin:Missing

[penstock.reasoning_parsers]
silent = pst_plugin:Silent
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution, as far as importlib.metadata can tell."""
    (tmp_path / "pst_plugin.py").write_text(MODULE)
    info = tmp_path / "pst_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pst-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plugin")
def test_a_plugin_is_found_by_its_entry_point() -> None:
    kind = tool_parser("shouted", "")
    assert kind(["f"]).push("!f")[0].name == "f"  # type: ignore[union-attr]
    reasoning = reasoning_parser("silent", "")
    assert reasoning is not None
    assert reasoning("").push("x") == []


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("neither", "is not a ToolParser"),
        ("missing", "can't be loaded"),
        ("nonsense", "allowed: auto, hermes, .*, json, missing"),
    ],
)
def test_a_plugin_that_will_not_do(name: str, says: str) -> None:
    with pytest.raises(StartupError, match=says):
        tool_parser(name, "")
