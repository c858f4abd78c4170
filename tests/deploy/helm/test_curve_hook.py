"""The hook that makes the Secrets of CurveZMQ keys, against an API server of a few lines."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
import zmq.auth

from tests.deploy.helm.chart import rendered
from tests.deploy.helm.objects import containers, named, of_kind

BASE = "/api/v1/namespaces/llm/secrets"


class ApiServer(ThreadingHTTPServer):
    """Keeps Secrets. asked: what was, in order.  allowed: names that may be read and replaced."""

    def __init__(self, allowed: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secrets: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.allowed = allowed


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def answer(self, status: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def handle_one(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        if self.headers["authorization"] != "Bearer the-token":
            return self.answer(401, {})
        size = int(self.headers["content-length"] or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        name = body["metadata"]["name"] if self.command == "POST" else self.path.split("/")[-1]
        if name not in self.server.allowed:
            return self.answer(403, {"message": f"{name} is none of yours"})
        known = self.server.secrets.get(name)
        if self.command == "GET":
            return self.answer(200, known) if known else self.answer(404, {})
        if self.command == "POST" and known:
            return self.answer(409, {})
        self.server.secrets[name] = body
        return self.answer(201, body)

    do_GET = do_POST = do_PUT = handle_one

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[ApiServer]:
    (role,) = of_kind(rendered(), "Role")
    server = ApiServer({name for rule in role["rules"] for name in rule.get("resourceNames", ())})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def run(api: ApiServer, folder: Path) -> subprocess.CompletedProcess[str]:
    """The Job's container, as it is rendered."""
    objects = named(rendered())
    (container,) = containers(objects["Job", "prod-curve"])
    script = folder / "curve_secrets.py"
    script.write_text(objects["ConfigMap", "prod-curve"]["data"][script.name])
    assert container["command"] == ["python", f"/hook/{script.name}"]
    name, _ = container["args"]
    account = folder / "account"
    account.mkdir(exist_ok=True)
    (account / "token").write_text("the-token\n")
    (account / "namespace").write_text("llm")
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "penstock").write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
    (tools / "penstock").chmod(0o755)
    return subprocess.run(
        [sys.executable, str(script), name, str(folder / "keys")],
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "ACCOUNT_DIR": str(account),
            "API_SCHEME": "http",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.server_address[1]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def mounted(api: ApiServer, role: str, folder: Path) -> Path:
    """What the pods of this role have as --curve-dir: the Secret, as the chart mounts it."""
    kind = "Deployment" if role == "gateway" else "StatefulSet"
    spec = named(rendered())[kind, f"prod-{role}"]["spec"]["template"]["spec"]
    (volume,) = (each["secret"] for each in spec["volumes"] if each["name"] == "curve")
    data = api.secrets[volume["secretName"]]["data"]
    for item in volume["items"]:
        file = folder / role / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data[item["key"]]))
        file.chmod(0o600)
    return folder / role


def check_fit(api: ApiServer, folder: Path) -> None:
    """Each knows the other's public key, in the files that Penstock reads."""
    engine = mounted(api, "engine", folder)
    public, secret = zmq.auth.load_certificate(engine / "engine.key_secret")
    assert secret
    for role, peers in (("gateway", "frontends"), ("worker", "workers")):
        own = mounted(api, role, folder)
        assert zmq.auth.load_certificate(own / "engine.key")[0] == public
        mine, secret = zmq.auth.load_certificate(own / f"{role}.key_secret")
        assert secret
        assert zmq.auth.load_certificate(engine / peers / f"{role}.key")[0] == mine


def test_it_makes_three_that_fit_and_keeps_them(api: ApiServer, tmp_path: Path) -> None:
    done = run(api, tmp_path)
    assert done.returncode == 0, done.stderr
    check_fit(api, tmp_path / "first")
    before = json.dumps(api.secrets)
    (again := tmp_path / "again").mkdir()
    done = run(api, again)  # another pod: an upgrade
    assert done.returncode == 0, done.stderr
    assert json.dumps(api.secrets) == before
    assert not any(line.startswith(("PUT", "DELETE")) for line in api.asked)
    keys = {name: set(secret["data"]) for name, secret in api.secrets.items()}
    assert keys["prod-curve-worker"] == {"worker.key_secret", "engine.key"}
    assert not any(
        "gateway.key_secret" in names for name, names in keys.items() if "gateway" not in name
    )


@pytest.mark.parametrize("lost", ["gateway", "worker", "engine"])
def test_one_that_was_lost_is_made_again_and_the_others_hear_of_it(
    api: ApiServer, tmp_path: Path, lost: str
) -> None:
    run(api, tmp_path)
    del api.secrets[f"prod-curve-{lost}"]
    (again := tmp_path / "again").mkdir()
    done = run(api, again)
    assert done.returncode == 0, done.stderr
    check_fit(api, tmp_path / "after")


def test_what_it_may_not_do_is_said(api: ApiServer, tmp_path: Path) -> None:
    api.allowed.clear()
    done = run(api, tmp_path)
    assert done.returncode == 1
    assert "403" in done.stderr
    assert "none of yours" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_hook_comes_before_what_needs_it() -> None:
    documents = rendered()
    hooks = [one for one in documents if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    weights = {
        one["kind"]: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) for one in hooks
    }
    assert max(weights, key=lambda kind: weights[kind]) == "Job", yaml.safe_dump(weights)
    assert {one["kind"] for one in hooks} == {
        *("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Job")
    }
    binding = next(one for one in hooks if one["kind"] == "RoleBinding")
    assert ("Role", binding["roleRef"]["name"]) in named(documents)
    assert (
        binding["subjects"][0]["name"]
        == named(documents)["Job", "prod-curve"]["spec"]["template"]["spec"]["serviceAccountName"]
    )
