"""API keys in a whole system: several gateways, one engine core that counts what is open."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.serving import PATIENCE, Server, wait_until
from tests.gateway import keyring

pytestmark = pytest.mark.timeout(400)

CAPPED, TWIN, FREE = "sk-capped", "sk-twin", "sk-free"
PROMPTS = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]


def ask(server: Server, path: str, secret: str | None, body: Any = None) -> tuple[int, Any]:
    headers = {"content-type": "application/json"}
    headers |= {} if secret is None else keyring.bearer(secret)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def served(server: Server, secret: str, body: Any) -> Any:
    """The completion, once it is not refused for too many at once. Nothing else is excused."""
    answers: list[tuple[int, Any]] = []

    def taken() -> bool:
        answers.append(ask(server, "/v1/completions", secret, body))
        return answers[-1][0] != 429

    wait_until(taken)
    assert answers[-1][0] == 200, answers[-1]
    return answers[-1][1]


def is_logged(server: Server, expected: dict[str, Any]) -> bool:
    """Whether the access log has a line with these fields. A line is written after its answer."""
    lines = [line for line in server.stderr.splitlines() if '"event": "request"' in line]
    return any(expected.items() <= json.loads(line).items() for line in lines)


def test_who_fills_all_slots_does_not_keep_another_tenant_waiting(
    start_server: Callable[..., Server], tiny_model: str, tmp_path: Path
) -> None:
    keys = keyring.write(tmp_path / "keys.json", keyring.key(CAPPED), keyring.key(FREE))
    server = start_server(tiny_model, "--api-keys", keys, "--max-num-seqs", "4")
    short = {"prompt": PROMPTS[0], "max_tokens": 4, "ignore_eos": True}
    flood = short | {"prompt": PROMPTS * 40, "n": 8, "max_tokens": 100, "stream": True}
    headers = {"content-type": "application/json", **keyring.bearer(CAPPED)}
    request = urllib.request.Request(
        server.url + "/v1/completions", json.dumps(flood).encode(), headers
    )

    def is_flooded() -> bool:
        """Whether sequences wait for a slot."""
        waiting: int = ask(server, "/status", FREE)[1]["engine"]["waiting"]
        return waiting > 0

    with urllib.request.urlopen(request, timeout=PATIENCE):
        wait_until(is_flooded)
        assert ask(server, "/v1/completions", FREE, short)[0] == 200
        assert is_flooded(), "it had its turn after all others"


def test_keys_in_a_whole_system(
    start_server: Callable[..., Server], tiny_model: str, tmp_path: Path
) -> None:
    terms = {"tenant": "acme", "max_concurrent": 2}
    keys = keyring.write(
        tmp_path / "keys.json",
        keyring.key(CAPPED, **terms),
        keyring.key(TWIN, **terms),
        keyring.key(FREE),
    )
    server = start_server(tiny_model, "--gateways", "2", "--api-keys", keys, "--access-log", "json")
    if shutil.which("curl") is not None:
        # A model without a chat template, behind keys: the printed line knows both.
        assert '"text":' in server.try_it(PENSTOCK_API_KEY=FREE)
        with pytest.raises(subprocess.CalledProcessError):
            server.try_it(PENSTOCK_API_KEY="")
    body = {"prompt": PROMPTS[:2], "max_tokens": 50, "ignore_eos": True, "temperature": 0}
    for secret in (None, "sk-none"):
        assert ask(server, "/v1/completions", secret, body)[0] == 401
        assert ask(server, "/status", secret)[0] == 401
    status, expected = ask(server, "/v1/completions", FREE, body)
    assert (status, expected["usage"]["prompt_tokens"]) == (200, 6)
    line = {"key": "free", "model": server.model, "status": 200, "prompt_tokens": 6}
    line["output_tokens"] = expected["usage"]["completion_tokens"]
    wait_until(lambda: is_logged(server, line), PATIENCE, lambda: server.stderr)
    for secret in (CAPPED, TWIN):
        # What was refused before is aborted by one gateway; another may be quicker to ask.
        assert served(server, secret, body)["choices"] == expected["choices"]
        # Three prompts are three requests to the engine core; it counts by tenant.
        status, reply = ask(server, "/v1/completions", secret, body | {"prompt": PROMPTS})
        assert status == 429
        assert reply["error"]["code"] == "rate_limit_exceeded"
    assert ask(server, "/v1/completions", FREE, body | {"prompt": PROMPTS})[0] == 200

    # A rolling restart finds out by itself, without a key, who is ready.
    server.process.send_signal(signal.SIGUSR2)
    wait_until(
        lambda: 'event="gateways restarted"' in server.stderr,
        2 * PATIENCE,
        lambda: server.stderr[-5000:],
    )

    keyring.write(tmp_path / "keys.json", keyring.key(CAPPED, tenant="acme", max_concurrent=3))
    wait_until(lambda: ask(server, "/v1/completions", FREE, body)[0] == 401)
    # What the tenant may have has changed with the file; the engine core was not restarted.
    assert served(server, CAPPED, body | {"prompt": PROMPTS})["choices"]
