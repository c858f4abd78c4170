"""What `deploy/up.sh` writes into .env, so that a later `docker compose up` is the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from deploy.compose import __main__ as up
from deploy.compose import docker, dotenv
from deploy.compose.first_token import KeyNeeded, wait_first_token
from tests.deploy.compose_tree import ROOT


def test_lines_of_others_stay(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    assert dotenv.read(file) == {}
    file.write_text("# mine\nPORT=9000\nMODEL=smollm2-135m\n\nexport TAG='a b'\n")
    assert dotenv.read(file) == {"PORT": "9000", "MODEL": "smollm2-135m", "TAG": "a b"}
    added = dotenv.remember({"MODEL": "owner/name:Q4_K_M", "PORT": "9000", "EXTRAS": "a b"}, file)
    assert added == ["MODEL=owner/name:Q4_K_M", "EXTRAS='a b'"]
    said = file.read_text()
    assert said.startswith("# mine\nPORT=9000\n\nexport TAG='a b'\n")
    assert dotenv.read(file) == {
        "PORT": "9000",
        "TAG": "a b",
        "MODEL": "owner/name:Q4_K_M",
        "EXTRAS": "a b",
    }
    assert dotenv.remember({"MODEL": "owner/name:Q4_K_M"}, file) == []
    assert file.read_text() == said


@pytest.mark.parametrize("value", ["it's", "a\nb"])
def test_what_compose_would_read_otherwise_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValueError, match="can't be written"):
        dotenv.remember({"MODEL": value}, tmp_path / ".env")
    assert not (tmp_path / ".env").exists()


def test_credentials_are_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MODEL": "a/b", "API_KEYS_FILE": "./keys.yaml", "AWS_SECRET_ACCESS_KEY": "s"}
    for name, value in (given | {"HF_TOKEN": "hf_secret", "PATH_OF_MINE": "x"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PORT", raising=False)
    said = dotenv.said()
    assert said.items() >= {("MODEL", "a/b"), ("API_KEYS_FILE", "./keys.yaml")}
    assert not {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PATH_OF_MINE", "PORT"} & said.keys()


def test_a_later_call_finds_what_the_first_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / ".env"
    monkeypatch.setattr(dotenv, "FILE", file)
    for name in (*up.PORTS, "MODEL", "GATEWAYS"):
        monkeypatch.delenv(name, raising=False)
    parser = up._parser()
    override = "deploy/compose.keys.yml"
    first = up._system(parser.parse_args(["--model", "a/b", "--gateways", "3", "--file", override]))
    assert "MODEL=a/b" in capsys.readouterr().out
    file.write_text(file.read_text() + "PORT=8123\n")
    later = up._system(parser.parse_args([]))
    assert (later.project, later.files) == (first.project, first.files)
    assert later.files == ["docker-compose.yml", override]
    assert (first.environment["PORT"], later.environment["PORT"]) == ("8000", "8123")
    known = dotenv.read(file)
    assert (known["MODEL"], known["GATEWAYS"]) == ("a/b", "3")
    # A check is of its own, and leaves no trace.
    before = file.read_text()
    check = up._system(parser.parse_args(["--check", "--model", "c/d"]))
    assert check.project == "penstock-check"
    assert check.files == ["docker-compose.yml"]
    assert file.read_text() == before


@pytest.mark.parametrize("command", [["docker", "compose"], ["docker-compose"]])
def test_compose_reads_what_was_written(tmp_path: Path, command: list[str]) -> None:
    """No engine is needed to read files."""
    try:
        docker.run([*command, "version"], timeout=30)
    except docker.Failed as missing:
        pytest.skip(str(missing))
    for name in ("docker-compose.yml", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    values = {
        "MODEL": "owner/name:Q4_K_M",
        "GATEWAYS": "3",
        "COMPOSE_PROJECT_NAME": "mine",
        "COMPOSE_FILE": "docker-compose.yml:deploy/compose.keys.yml",
        "HTTPS_PROXY": "http://proxy.example:3128",
    }
    dotenv.remember(values, tmp_path / ".env")
    done = subprocess.run(
        [*command, "config"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    services = yaml.safe_load(done.stdout)["services"]
    assert "owner/name:Q4_K_M" in services["prepare"]["command"]
    assert services["prepare"]["environment"]["HTTPS_PROXY"] == values["HTTPS_PROXY"]
    assert "HF_ENDPOINT" not in {
        name for name, value in services["prepare"]["environment"].items() if value is not None
    }
    assert services["gateway"]["scale"] == 3
    assert "--api-keys=/run/secrets/api_keys" in services["gateway"]["command"]


def test_who_has_no_key_waits_for_no_answer() -> None:
    class Keyed(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(401)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Keyed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(KeyNeeded):
            wait_first_token(f"http://127.0.0.1:{server.server_address[1]}", 60)
        server.shutdown()


def test_a_value_that_can_not_be_written_ends_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.compose", "--model", "it's"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "deploy/up.sh: \"it's\" can't be written into .env\n"
