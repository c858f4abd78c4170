"""Schemathesis: whatever the OpenAPI document allows, and what it doesn't, against the server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from testing.serving import Server
from tests.system.clients.installed import clean_environment, venv

pytestmark = [pytest.mark.timeout(400)]

SECONDS, LONG_SECONDS = 12, 120
"""Seconds of sending cases, without and with --long: the first ones are the same in every run, and
a fast machine gets further."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
CONFIG = """\
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503]
"""
"""503: the queue is full, or what the server can't have done in time was refused."""


STOPPING = ("/pause", "/resume", "/sleep", "/wake_up")
"""What makes every later request wait until somebody undoes it: sent to in a run of its own."""


def test_the_document_is_kept(
    start_server: Callable[..., Server], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seconds = LONG_SECONDS if request.config.getoption("--long") else SECONDS
    # A short context: what a case asks for is soon done.
    server = start_server("--max-model-len", "64")
    # /live is a stream without an end.
    send_cases(
        server, tmp_path, seconds, [f"--exclude-path={path}" for path in ("/live", *STOPPING)]
    )
    # Four endpoints with few fields.
    send_cases(server, tmp_path, seconds // 3, [f"--include-path={path}" for path in STOPPING])
    for path in ("/wake_up", "/resume"):
        status, body = server.post(path, {})
        assert status == 200, body
    status, body = server.post("/v1/completions", {"prompt": "One", "max_tokens": 1})
    assert status == 200, body


def send_cases(server: Server, folder: Path, seconds: int, paths: Sequence[str]) -> None:
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [venv() / "bin" / "schemathesis", "--config-file", config]
    command += ["run", f"{server.url}/openapi.json", "--phases", "examples,coverage,fuzzing"]
    command += ["--checks", ",".join(CHECKS), "--continue-on-failure", "--max-examples", "50"]
    command += ["--generation-deterministic", "--suppress-health-check", "all", *paths]
    command += ["--max-time", str(seconds), "--request-timeout", "120", "--no-color"]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "generated" in done.stdout
    status, _ = server.get("/health/ready")
    assert status == 200
