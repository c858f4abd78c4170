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

from tests.gateway import keyring

pytestmark = pytest.mark.timeout(300)

Started = tuple[subprocess.Popen[str], str]
Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `penstock gateway`; returns the process and its base URL."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, admin: list[str] | None = None, **keywords: Any) -> Started:
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
        listening = ""
        for line in process.stderr:
            if match := re.search(r'event="admin port" url=(\S+)', line):
                (admin if admin is not None else []).append(match[1])
            if match := re.search(r"event=listening url=(\S+)", line):
                listening = match[1]
            if listening and (admin is None or admin):
                return process, listening
        raise AssertionError("left before it listened")

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ask(url: str, body: Any = None, key: str | None = None) -> tuple[int, dict[str, str], Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    headers |= {} if key is None else keyring.bearer(key)
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
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
    # Nothing is open, so nothing is waited for: nobody would see the end of this shutdown's time.
    process, url = start("--shutdown-timeout", "600")
    assert ask(f"{url}/health/live")[0] == 200
    process.send_signal(number)
    assert process.wait(60) == 0
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


DRAWS = """
import os, secrets, sys, uuid

def watched(draw):
    def drawn(*arguments):
        by = sys._getframe(1).f_globals["__name__"]
        if by.partition(".")[0] in ("penstock", "penstock_gateway"):
            print(by)
        return draw(*arguments)
    return drawn

for module, name in [(os, "urandom"), (secrets, "token_hex"), (secrets, "token_bytes"),
                     (secrets, "randbits"), (uuid, "uuid4")]:
    setattr(module, name, watched(getattr(module, name)))
import penstock_gateway.process
penstock_gateway.process.make_ahead()
"""


def test_what_forks_share_draws_nothing() -> None:
    """Gateways are forks of a process that has done all that: it would be the same in all."""
    found = subprocess.run([sys.executable, "-c", DRAWS], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, ""), found.stderr


def test_the_admin_port_and_a_file_that_changes(start: Start, tmp_path: Path) -> None:
    keys = keyring.write(tmp_path / "keys.json", keyring.key(keyring.ADMIN, admin=True))
    admin: list[str] = []
    process, url = start("--api-keys", keys, "--admin-port", "0", admin=admin)
    assert ask(f"{url}/version")[0] == 401
    assert ask(f"{url}/version", key=keyring.ADMIN)[0] == 200
    assert ask(f"{url}/metrics", key=keyring.ADMIN)[0] == 403
    assert ask(f"{admin[0]}/metrics")[0] == 401
    request = urllib.request.Request(f"{admin[0]}/metrics", headers=keyring.bearer(keyring.ADMIN))
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert b"vllm:generation_tokens_total" in answer.read()
    keyring.write(tmp_path / "keys.json", keyring.key(keyring.ALICE))
    deadline = time.monotonic() + 60
    while ask(f"{url}/version", key=keyring.ALICE)[0] != 200:
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(0.1)
    assert ask(f"{url}/version", key=keyring.ADMIN)[0] == 401
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_the_key_of_the_environment(start: Start) -> None:
    _, url = start(env=os.environ | {"PENSTOCK_API_KEY": "sk-mine"})
    assert ask(f"{url}/version")[0] == 401
    assert ask(f"{url}/version", key="sk-mine")[0] == 200


def test_open_to_others_only_when_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "gateway", "--port", "0", "--host", "0.0.0.0"]
    command += ["--engine-endpoint", f"ipc://{tmp_path}/frontend"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "--allow-open" in done.stderr


WITHOUT_EXTRAS = """
import sys


class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"sqlalchemy", "boto3", "grpc", "psycopg"}:
            raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, Absent())
from penstock.config.storage_settings import StorageSettings
from penstock.errors import StartupError
import penstock_gateway.process
import penstock_gateway.endpoints
from penstock_gateway.storage.store import Store

assert Store.of(StorageSettings()) is None
try:
    Store.of(StorageSettings(data_dir="/nowhere"))
except StartupError as error:
    print(error)
"""


def test_a_gateway_needs_no_package_of_an_extra() -> None:
    """An image without extras has none of them."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "--data-dir needs the package sqlalchemy: pip install 'penstock-llm[storage]'\n"
    )
