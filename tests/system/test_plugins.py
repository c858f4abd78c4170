"""A whole system with the documentation's examples of plug-ins, and one that can't start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from testing.examples import install
from testing.serving import PATIENCE, Server, ServerFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = ("endpoint", "logger", "policy", "backend")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in EXAMPLES:
        install(name, tmp_path)
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), known])))
    return tmp_path


def complete(server: Server) -> str:
    body = {"model": server.model, "prompt": "ab" * 40, "max_tokens": 8, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"]


@pytest.mark.usefixtures("site")
def test_examples_in_a_whole_system(start_server: Callable[..., Server], tiny_model: str) -> None:
    server = start_server(
        tiny_model,
        *("--scheduling-policy", "shortest-first", "--attention-backend", "watched"),
        *("--plugins", "uptime,long_prompts", "--dtype", "float32"),
    )
    said = complete(server)
    assert httpx.get(f"{server.url}/v1/uptime", timeout=PATIENCE).json()["seconds"] > 0
    assert "example:long_prompts_total" in httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
    assert "a long prompt" in server.stderr
    assert "the largest logit so far" in server.stderr
    plain = start_server(
        *(tiny_model, "--attention-backend", "reference", "--dtype", "float32"),
        *("--plugins", "none"),
    )
    assert complete(plain) == said
    assert httpx.get(f"{plain.url}/v1/uptime", timeout=PATIENCE).status_code == 404


def test_what_was_asked_for_and_is_broken_stops_the_start(
    start_server: Callable[..., Server], tiny_model: str, site: Path
) -> None:
    (site / "example_endpoint.py").write_text("raise RuntimeError('no luck')")
    with pytest.raises(ServerFailed, match=r"the plug-in uptime of example-endpoint 1\.0"):
        start_server(tiny_model, "--plugins", "uptime")
    with pytest.raises(ServerFailed, match="no plug-in is called other; allowed: all, none"):
        start_server(tiny_model, "--plugins", "other")
