"""What `deploy/up.sh` writes into .env, so that a later `docker compose up` is the same."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("PORT=8080 # the page", "8080"),
        ("PORT=80#80", "80#80"),
        ("PORT = 8080 ", "8080"),
        ("PORT='80 # 80' # it's mine", "80 # 80"),
        ('PORT="8080" # "the" page', "8080"),
        ("PORT=", ""),
    ],
)
def test_values_are_read_as_compose_reads_them(tmp_path: Path, line: str, value: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"{line}\nMODEL=a/b\n")
    assert dotenv.read(file) == {"PORT": value, "MODEL": "a/b"}
    dotenv.remember({"PORT": "1"}, file)
    assert file.read_text() == "MODEL=a/b\nPORT=1\n"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_mode_owner_and_link_stay(tmp_path: Path, mode: int) -> None:
    file, link = tmp_path / "settings", tmp_path / ".env"
    file.write_text("HF_TOKEN=mine\n")
    file.chmod(mode)
    if os.geteuid() == 0:
        os.chown(file, 4321, 4321)
    before = file.stat()
    link.symlink_to("settings")
    dotenv.remember({"MODEL": "a/b"}, link)
    assert link.is_symlink()
    assert file.read_text() == "HF_TOKEN=mine\nMODEL=a/b\n"
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert {path.name for path in tmp_path.iterdir()} == {"settings", ".env"}


def test_a_new_file_is_its_owners(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    dotenv.remember({"MODEL": "a/b"}, file)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("value", ["it's", "a\nb"])
def test_what_compose_would_read_otherwise_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValueError, match="can't be written"):
        dotenv.remember({"MODEL": value}, tmp_path / ".env")
    assert not (tmp_path / ".env").exists()


def test_credentials_are_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {
        "MODEL": "a/b",
        "API_KEYS_FILE": "./keys.yaml",
        "HF_ENDPOINT": "https://mirror.example/@hub",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "NO_PROXY": ".example,localhost",
    }
    credentials = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "HF_TOKEN": "hf_secret",
        "HTTP_PROXY": "http://me:password@proxy.example:3128",
        "TORCH_INDEX": "https://token@index.example/simple",
        "PLUGINS": "one==1 git+https://me:token@git.example/two",
    }
    for name, value in (plain | credentials | {"PATH_OF_MINE": "x"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PORT", raising=False)
    given, secret = dotenv.given_variables()
    assert given.items() >= plain.items()
    assert set(secret) >= credentials.keys()
    assert not {*credentials, "PATH_OF_MINE", "PORT"} & given.keys()
    assert not {"PATH_OF_MINE", "PORT"} & set(secret)


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
    assert check.environment["MODEL"] == "c/d"
    assert check.project == "penstock-check"
    assert check.files == ["docker-compose.yml"]
    assert file.read_text() == before


def test_an_option_goes_before_the_same_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What .env is said to hold is what is served."""
    monkeypatch.setattr(dotenv, "FILE", tmp_path / ".env")
    for name, value in {"MODEL": "a/a", "GATEWAYS": "5", "HF_TOKEN": "hf_secret"}.items():
        monkeypatch.setenv(name, value)
    parser = up._parser()
    system = up._system(parser.parse_args(["--model", "b/b", "--gateways", "3"]))
    assert (system.environment["MODEL"], system.environment["GATEWAYS"]) == ("b/b", "3")
    known = dotenv.read()
    assert (known["MODEL"], known["GATEWAYS"]) == ("b/b", "3")
    assert ".env: not HF_TOKEN" in capsys.readouterr().out
    assert "hf_secret" not in dotenv.FILE.read_text()
    assert "MODEL" not in up._system(parser.parse_args([])).environment, "the shell's variable does"


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
