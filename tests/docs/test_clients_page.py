"""The settings that the page about clients shows: each is of its file's format, and names the
server and the model of the page's own command."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.docs.snippets import BASE, snippets, text_of

PAGE = "docs/guides/clients.md"
MODEL = "local"
WINDOW = 65536


def lines(text: str) -> dict[str, str]:
    """NAME=value or Name: value, a line each."""
    return dict(re.split(r"=|: ", line, maxsplit=1) for line in text.splitlines())


def assignment(text: str) -> Any:
    """The value of Vim's `let`: a dictionary as Python writes it."""
    return ast.literal_eval(text.partition(" = ")[2])


FORMATS: dict[str, Callable[[str], Any]] = {
    "Claude Code": lines,
    "Codex": tomllib.loads,
    "opencode": json.loads,
    "Copilot in VS Code": json.loads,
    "Cline": lines,
    "Zed": json.loads,
    "Continue": yaml.safe_load,
    "aider": lines,
    "Open WebUI": lines,
    "n8n": lines,
    "llama.vim": assignment,
    "llama.vscode": json.loads,
}
PLUGINS = ("llama.vim", "llama.vscode")


def settings_of(client: str) -> str:
    section = text_of(PAGE).split(f"\n## {client}\n")[1].split("\n#")[0]
    (code,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    return str(code)


def values(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [each for value in tree.values() for each in values(value)]
    if isinstance(tree, list):
        return [each for value in tree for each in values(value)]
    return [tree]


@pytest.mark.parametrize("client", FORMATS)
def test_settings_are_of_their_format(client: str) -> None:
    code = settings_of(client)
    found = values(FORMATS[client](code))
    urls = [each for each in found if str(each).startswith("http")]
    assert urls
    assert all(url.startswith(BASE) for url in urls)
    paths = {url.removeprefix(BASE) for url in urls}
    wanted = {"", "/infill", "/v1/chat/completions"} if client in PLUGINS else set()
    assert paths <= {"/v1", "/v1/chat/completions"} or paths <= wanted or client == "Claude Code"
    assert MODEL in code or client in ("aider", "Open WebUI", "n8n", *PLUGINS)
    for number in (each for each in found if isinstance(each, int) and each > 1):
        assert number <= WINDOW


def test_the_page_has_no_others() -> None:
    blocks = [each for each in snippets(PAGE) if each.language == "text"]
    assert len(blocks) == len(FORMATS)
    command = f"--served-model-name {MODEL} --max-model-len {WINDOW}"
    assert command in text_of(PAGE)
