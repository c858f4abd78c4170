"""Every block of the documentation is of a kind that is checked, and could run."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import yaml

from penstock.config.settings import ServeConfig
from penstock.config.tree import load_file
from penstock.request.api_keys import load_keys
from tests.docs.command_checks import check_command
from tests.docs.snippets import PAGES, Snippet, commands_of, lines_of, snippets

SETTINGS, KEYS = "# settings.yaml\n", "# keys.yaml\n"
"""First lines of blocks that are files of Penstock's."""


def test_blocks_could_run(tmp_path: Path) -> None:
    found = [snippet for page in PAGES for snippet in snippets(page)]
    assert len(found) > 80
    for snippet in found:
        match snippet.language:
            case "sh":
                _check_shell(snippet)
            case "python":
                ast.parse(snippet.code)
            case "json":
                json.loads(snippet.code)
            case "yaml":
                _check_yaml(snippet, tmp_path)
            case other:
                assert other == "text", f"{snippet} is of the kind {other!r}, which nothing checks"


def _check_shell(snippet: Snippet) -> None:
    for line in lines_of(snippet.code):
        for variables, words in commands_of(line):
            try:
                check_command(variables, words)
            except AssertionError as error:
                raise AssertionError(f"{snippet}: {line.strip()}: {error}") from error


def _check_yaml(snippet: Snippet, folder: Path) -> None:
    path = folder / "file.yaml"
    path.write_text(snippet.code, encoding="utf-8")
    if snippet.code.startswith(SETTINGS):
        load_file(ServeConfig, str(path))
    elif snippet.code.startswith(KEYS):
        assert load_keys(str(path))
    else:
        assert yaml.safe_load(snippet.code)
