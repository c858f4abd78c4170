"""The file of API keys, the command that makes one, and what must not be started."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.cli.main import main
from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.net.exposure import check_exposure, check_limits, configured_keys, is_loopback
from penstock.protocol.common import Grant
from penstock.request.api_keys import ENVIRONMENT, ApiKey, check_keys, load_keys, new_key

DIGEST = "ab" * 32


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_command_makes_an_entry_that_the_file_takes(capfd, tmp_path):
    limits = ["--requests-per-minute", "60", "--tokens-per-minute", "1000", "--max-concurrent", "4"]
    terms = ["--tenant", "acme", "--weight", "3", "--highest-priority", "-5", "--model", "a/b"]
    assert main(["key", 'al"ice: {', *terms, *limits]) == 0
    assert main(["key", "root", "--admin"]) == 0
    out, err = capfd.readouterr()
    alice, root = load_keys(write(tmp_path / "keys.yaml", out))
    keys = re.findall(r"sk-penstock-\S+", err)
    assert [hashlib.sha256(key.encode()).hexdigest() for key in keys] == [alice.sha256, root.sha256]
    assert not any(key in out for key in keys)
    assert alice.name == 'al"ice: {'
    assert (alice.tenant_name, alice.grant) == ("acme", Grant(3, 4, -5))
    assert (alice.requests_per_minute, alice.tokens_per_minute) == (60, 1000)
    assert alice.models == ("a/b",)
    assert not alice.admin
    assert root.admin
    assert root.models is None
    assert root.tenant_name == root.sha256[:32]


def test_a_key_for_metrics_goes_into_a_file_and_stays(capfd, tmp_path):
    file = tmp_path / "key"
    command = ["key", "prometheus", "--metrics", "--key-file", str(file)]
    assert main(command) == 0
    key = file.read_text().strip()
    out, err = capfd.readouterr()
    assert key not in out + err
    assert file.stat().st_mode & 0o137 == 0, "nobody but owner and group"
    (entry,) = load_keys(write(tmp_path / "keys.yaml", out))
    assert entry.metrics
    assert not entry.admin
    assert entry.sha256 == hashlib.sha256(key.encode()).hexdigest()
    assert main(command) == 0
    assert capfd.readouterr().out == out
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_what_is_no_key_is_not_taken_for_one(capfd, tmp_path):
    file = tmp_path / "key"
    for text in ("", "short", "two words of a file", "x" * 2000, "é" * 20):
        file.write_text(text)
        assert main(["key", "prometheus", "--key-file", str(file)]) == 1
        assert "doesn't hold an API key" in capfd.readouterr().err
        with pytest.raises(StartupError, match="16 to 1024"):
            configured_keys(GatewayConfig(api_keys=os.devnull, metrics_key_file=str(file)))
    assert main(["key", "prometheus", "--key-file", str(tmp_path / "no" / "key")]) == 1
    assert "No such file" in capfd.readouterr().err


def test_the_file_of_a_metrics_key_is_one_more_key(monkeypatch, tmp_path):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    file = write(tmp_path / "key", "sk-metrics-of-prometheus\n")
    keys = write(tmp_path / "keys.yaml", f"- {{name: a, sha256: '{DIGEST}'}}")
    config = GatewayConfig(api_keys=keys, metrics_key_file=file)
    alice, metrics = configured_keys(config) or ()
    assert (alice.metrics, metrics.metrics, metrics.admin) == (False, True, False)
    assert metrics.sha256 == hashlib.sha256(b"sk-metrics-of-prometheus").hexdigest()
    assert configured_keys(GatewayConfig(metrics_key_file=file)) is None, "nobody needs a key"
    monkeypatch.setenv(ENVIRONMENT, "sk-of-the-environment")
    alone = configured_keys(GatewayConfig(metrics_key_file=file)) or ()
    assert [key.metrics for key in alone] == [False, True]
    monkeypatch.delenv(ENVIRONMENT)
    # The same key may stand in the file too, and then it means what the file says.
    write(Path(keys), f"- {{name: a, sha256: '{metrics.sha256}', admin: true}}")
    (only,) = configured_keys(config) or ()
    assert only.admin


def test_keys_are_random():
    assert len({new_key() for _ in range(100)}) == 100
    assert len(new_key()) > 40


@pytest.mark.parametrize("flags", [["--weight", "0"], ["--tenant", "a b"], ["--tenant", ""]])
def test_the_command_refuses_what_the_file_would(capsys, flags):
    assert main(["key", "x", *flags]) == 2
    assert capsys.readouterr().out == ""


def test_json_and_an_empty_file(tmp_path):
    text = json.dumps([{"name": "a", "sha256": DIGEST.upper()}])
    assert load_keys(write(tmp_path / "keys.json", text))[0].digest == b"\xab" * 32
    assert load_keys(write(tmp_path / "none.yaml", "")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {name: a, sha256: abc}", "sha256"),
        (f"- {{name: a, sha256: '{DIGEST}', key: sk-secret}}", "key"),
        (f"- {{sha256: '{DIGEST}'}}", "name"),
        (f"- {{name: a, sha256: '{DIGEST}', weight: 1001}}", "weight"),
        (f"- {{name: a, sha256: '{DIGEST}', tenant: '*'}}", "tenant"),
        (f"- {{name: a, sha256: '{DIGEST}', tenant: anonymous}}", "anonymous"),
        (f"- {{name: a, sha256: '{DIGEST}'}}\n- {{name: b, sha256: '{DIGEST}'}}", "same key"),
        (
            f"- {{name: a, sha256: '{DIGEST}', tenant: t}}\n"
            f"- {{name: b, sha256: '{'cd' * 32}', tenant: t, weight: 2}}",
            "belong to one tenant",
        ),
        (f"- {{name: a, sha256: '{DIGEST}', admin: true, metrics: true}}", "leave metrics out"),
        (
            f"- {{name: a, sha256: '{DIGEST}', admin: true, unload_models: true}}",
            "leave unload_mod",
        ),
        (f"- {{name: a, sha256: '{DIGEST}', metrics: true, unload_models: true}}", "nothing else"),
        ("keys: {", "keys.yaml"),
        ("just text", "keys.yaml"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, words):
    with pytest.raises(StartupError, match=re.escape(words)):
        load_keys(write(tmp_path / "keys.yaml", text))


def test_no_file(tmp_path):
    with pytest.raises(StartupError, match="No such file"):
        load_keys(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("mode", "word"), [(0o644, "readable"), (0o622, "writable"), (0o600, None)]
)
def test_a_file_that_others_may_read_or_write_is_warned_of(tmp_path, mode, word):
    file = write(tmp_path / "keys.yaml", "[]", mode)
    code = "from penstock.process import logs; from penstock.request import api_keys; "
    code += "logs.setup('t'); api_keys.load_keys"
    code += f"({file!r})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("chmod 600" in said.stderr) == (word is not None)
    assert word is None or f"{word} by others" in said.stderr


def test_the_key_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert configured_keys(GatewayConfig()) is None
    file = write(tmp_path / "keys.yaml", f"- {{name: a, sha256: '{DIGEST}'}}")
    assert [key.name for key in configured_keys(GatewayConfig(api_keys=file)) or ()] == ["a"]
    monkeypatch.setenv(ENVIRONMENT, "sk-mine")
    (only,) = configured_keys(GatewayConfig()) or ()
    assert only.sha256 == hashlib.sha256(b"sk-mine").hexdigest()
    assert only.admin
    assert len(configured_keys(GatewayConfig(api_keys=file)) or ()) == 2


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.8.7", "::1", ""])
def test_loopback_may_be_open(address):
    assert is_loopback(address)
    check_exposure(GatewayConfig(), address, has_keys=False)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.2", "fe80::1%eth0", "8.8.8.8"])
def test_other_addresses_may_not_be_open_unasked(address):
    with pytest.raises(StartupError, match="--api-keys") as refused:
        check_exposure(GatewayConfig(), address, has_keys=False)
    assert address in str(refused.value)
    check_exposure(GatewayConfig(), address, has_keys=True)
    check_exposure(GatewayConfig(allow_open=True), address, has_keys=False)


def test_several_gateways_do_not_count_in_memory_unasked():
    free, limited = (
        ApiKey(name="a", sha256=DIGEST),
        ApiKey(name="b", sha256=DIGEST, tokens_per_minute=5),
    )
    check_limits(GatewayConfig(), 1, [limited])
    check_limits(GatewayConfig(), 2, [free])
    check_limits(GatewayConfig(rate_limit_per_gateway=True), 2, [limited])
    check_limits(GatewayConfig(rate_limit_storage="redis://h"), 2, [limited])
    with pytest.raises(StartupError, match="--rate-limit-per-gateway"):
        check_limits(GatewayConfig(), 2, [limited])


def test_what_serve_refuses_to_start_with(tmp_path):
    """Before it prepares a model or starts a process."""
    file = write(
        tmp_path / "keys.yaml", f"- {{name: a, sha256: '{DIGEST}', requests_per_minute: 1}}"
    )
    environment = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
    for flags, words in (
        (["--host", "0.0.0.0"], "--allow-open"),
        (["--api-keys", file, "--gateways", "2"], "--rate-limit-per-gateway"),
        (["--api-keys", str(tmp_path / "none")], "No such file"),
    ):
        command = [sys.executable, "-m", "penstock", "serve", "--port", "0", *flags]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        assert done.returncode == 1
        assert words in done.stderr
        assert "child started" not in done.stderr


def test_entries_hold_no_unknown_field_and_are_bounded():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "a", "sha256": DIGEST, "plain": "x"}, ApiKey)
    assert check_keys([]) == []
