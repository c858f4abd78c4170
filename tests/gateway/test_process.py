"""The gateway as a process of its own, with no engine core to talk to."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `penstock gateway`; returns the process and its base URL."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **keywords: Any) -> tuple[subprocess.Popen[str], str]:
        endpoint = f"ipc://{tmp_path}/frontend"
        command = [sys.executable, "-m", "penstock", "gateway", "--engine-endpoint", endpoint]
        process = subprocess.Popen(
            [*command, "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            **keywords,
        )
        started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.search(r"event=listening url=(\S+)", line):
                return process, match[1]
        raise AssertionError("left before it listened")

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ask(url: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.load(error)


def test_serves_without_an_engine(start: Start) -> None:
    process, url = start()
    assert ask(f"{url}/health/live")[0] == 200
    assert ask(f"{url}/health/ready")[0] == 503
    status, headers, reply = ask(f"{url}/v1/completions", {"prompt": "x"})
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert reply["error"]["code"] == "engine_unavailable"
    assert ask(f"{url}/status")[2]["gateway"]["pid"] == process.pid
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert command.startswith(b"penstock: gateway 0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_leaves_on_a_signal(start: Start, number: int) -> None:
    process, url = start()
    assert ask(f"{url}/health/live")[0] == 200
    begun = time.monotonic()
    process.send_signal(number)
    assert process.wait(10) == 0
    assert time.monotonic() - begun < 3
    with pytest.raises(urllib.error.URLError):
        ask(f"{url}/health/live")


def test_accepts_from_an_inherited_socket(start: Start) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        _, url = start("--fd", str(listening.fileno()), pass_fds=[listening.fileno()])
        assert url == f"http://127.0.0.1:{port}"
        assert ask(f"{url}/health/live")[0] == 200


def test_imports_nothing_heavy() -> None:
    code = (
        "import sys, penstock_gateway.process\n"
        "print(*{'torch', 'transformers', 'triton', 'numpy'}.intersection(sys.modules))"
    )
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.split() == []
