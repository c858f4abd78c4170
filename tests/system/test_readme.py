"""What the README shows works as it is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.serve import curl_line
from testing.serving import Server

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
BASE = "http://127.0.0.1:8000"


def run(code: str) -> str:
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_line_is_the_one_that_serve_prints(server: Server) -> None:
    """Which test_supervisor pastes into a shell."""
    assert curl_line(BASE, server.model) in README
    assert curl_line(server.url, server.model) in server.stdout


def test_the_sdk_example(server: Server) -> None:
    (example,) = [code for code in PYTHON if "OpenAI(" in code]
    assert BASE in example
    # It draws a fresh seed each time, so no particular word is sure to come.
    assert len(run(example.replace(BASE, server.url)).strip()) > 10


@pytest.mark.timeout(700)
def test_the_library_example() -> None:
    generating, embedding = [code for code in PYTHON if "LLM(" in code]
    assert len(run(embedding).split(",")) == 4
    printed = run(generating)
    assert "Paris" in printed
    assert len(printed.strip().splitlines()) >= 3
