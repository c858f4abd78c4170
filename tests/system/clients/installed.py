"""The clients' own environment: `.venv-clients`, made by `make clients` from requirements.txt.

Some of them want other versions of what Penstock uses, so they can't share its environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
REQUIREMENTS = (HERE / "requirements.txt", HERE / "requirements-openai3.txt")
PACKAGES = HERE / "node" / "package.json"
SCRIPTS = HERE / "scripts"
PATIENCE = 400.0

CLIENTS = {
    "openai": "chat, stream, models, tools (named, required, streamed; results told), "
    "`parse` by a JSON schema, embeddings",
    "litellm": "chat, stream, tools, embeddings; loops; as `openai/`, `hosted_vllm/`, `anthropic/`",
    "langchain-openai": "chat, stream, tools, structured output, embeddings",
    "instructor": "Pydantic objects by JSON schema and by tool call; loops with parallel calls",
    "langchain": "agents' loops over chat and responses, whole, streamed, with a structured answer",
    "openai-agents": "the same",
    "pydantic-ai-slim": "the same, and over messages; its answer by a tool",
    "llama-index-llms-openai-like": "the same over chat",
    "anthropic": "the same by its tool runner",
    "ollama": "the same over Ollama's chat",
    "mistralai": "the same over chat",
    "cohere": "embeddings, also packed; rerank",
    "ai": "Vercel's AI SDK: the same over chat (by three providers), responses, messages",
    "lm_eval": "`local-completions` on a task of our own (echo, log-probabilities)",
    "tritonclient": "over gRPC: state, metadata, `infer`, a stream, embeddings",
    "aiperf": "streamed chat under concurrency, its own count of tokens and errors",
    "schemathesis": "every operation of /openapi.json: no 5xx, no status or shape undeclared",
}
"""Distribution, and what the tests exercise of it: the reference's table."""


def venv() -> Path:
    """The environment's folder. Without one the test fails, unless PENSTOCK_NO_CLIENTS is set."""
    folder = Path(os.environ.get("PENSTOCK_CLIENTS_VENV", ROOT / ".venv-clients"))
    if (folder / "bin" / "python").exists():
        return folder
    if os.environ.get("PENSTOCK_NO_CLIENTS"):
        pytest.skip("PENSTOCK_NO_CLIENTS is set, and there is no .venv-clients")
    pytest.fail(
        "there is no .venv-clients with the clients to test: `make clients` makes it (from the "
        "package registry); PENSTOCK_NO_CLIENTS=1 goes without"
    )


def run_script(name: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Runs a script with the clients' Python: what each of its features got, or its error."""
    command = [venv() / "bin" / "python", SCRIPTS / f"{name}.py", *arguments]
    return _run(command, environment)


def run_code(code: str) -> str:
    """What a script prints that the clients' Python runs."""
    done = subprocess.run(
        [venv() / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def run_node_script(name: str, *arguments: str) -> dict[str, Any]:
    """Runs a script with Node and what npm has installed. Skips the test where there is none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no node and npm to run Vercel's AI SDK with")
    packages = str(venv() / "node")
    return _run(["node", SCRIPTS / f"{name}.mjs", *arguments], {"NODE_PACKAGES": packages})


def _run(command: Sequence[str | Path], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=clean_environment(**environment),
    )
    if done.returncode:
        return {"": {"error": done.stderr[-4000:]}}
    # Before the last line is what the client itself has to say.
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def clean_environment(**more: str) -> dict[str, str]:
    """Without the paths of Penstock's own packages, and without telemetry."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    quiet = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "LANGSMITH_TRACING": "false",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    return {**kept, **quiet, **more}


def pinned() -> dict[str, str]:
    """Versions of all that is installed; of openai, the older one."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in reversed(REQUIREMENTS))
    found = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    packages: dict[str, str] = json.loads(PACKAGES.read_text(encoding="utf-8"))["dependencies"]
    return {**found, **packages}


def table() -> str:
    """The reference's table."""
    versions = pinned()
    rows = [f"| {name} | {versions[name]} | {what} |" for name, what in CLIENTS.items()]
    return "\n".join(["| client | version | exercised |", "|---|---|---|", *rows])
