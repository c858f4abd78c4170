"""The image with a whole server, as `docker run` starts it: only with --compose, on a machine with
an engine."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator

import pytest

from deploy.compose import docker

BUILDING = 3000
"""Seconds."""
STARTING = 300
IMAGE = f"{os.environ.get('IMAGE_PREFIX', 'penstock')}:{os.environ.get('TAG', 'dev')}"
ARGUMENTS = {"BASE": "BASE_IMAGE", "TORCH_INDEX": "TORCH_INDEX"}
"""Build arguments of the Dockerfile, with the variables that compose takes them from."""


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    """Built unless it is there."""
    if not request.config.getoption("--compose"):
        pytest.skip("takes minutes and a container engine: --compose")
    if not docker.has_image(IMAGE):
        given = [
            f"--build-arg={name}={os.environ[variable]}"
            for name, variable in ARGUMENTS.items()
            if variable in os.environ
        ]
        command = ["docker", "build", "-f", "deploy/docker/Dockerfile", "--target", "all-in-one"]
        network = f"--network={os.environ.get('BUILD_NETWORK', 'default')}"
        docker.run(
            [*command, *given, network, "-t", IMAGE, "."],
            environment=docker.builder_environment(),
            timeout=BUILDING,
        )
    return IMAGE


@pytest.fixture
def container(image: str) -> Iterator[str]:
    """One with a root that can't be written, and no privileges."""
    name = f"penstock-test-{uuid.uuid4().hex[:8]}"
    docker.docker(
        *("run", "-d", "--name", name, "--read-only", "--tmpfs", "/tmp", "-p", "127.0.0.1::8000"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "-e", "PENSTOCK_API_KEY=one"),
        *(image, "--max-model-len", "1024"),
    )
    yield name
    docker.docker("rm", "-f", "-v", name)


@pytest.mark.timeout(BUILDING + 600)
def test_a_whole_server_from_one_command(container: str) -> None:
    address = docker.docker("port", container, "8000/tcp").strip()
    url = f"http://{address}"
    wait_until_ready(url, container)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(url, "/v1/models", key="another")
    (model,) = ask(url, "/v1/models")["data"]
    assert (model["id"], model["max_model_len"]) == ("smollm2-135m", 1024)
    question = {"role": "user", "content": "What is the capital of Germany?"}
    body = {"model": model["id"], "messages": [question], "temperature": 0, "max_tokens": 20}
    answer = ask(url, "/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["content"] == "The capital of Germany is Berlin."
    assert docker.docker("exec", container, "id", "-u").strip() == "10001"
    assert "penstock.db" in docker.docker("exec", container, "ls", "/data").split()
    docker.docker("stop", "-t", "40", container)
    (state,) = docker.inspect(container)
    assert state["State"]["ExitCode"] == 0


def ask(url: str, path: str, body: object = None, *, key: str = "one") -> dict:
    """The reply. Raises HTTPError."""
    request = urllib.request.Request(
        url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


def wait_until_ready(url: str, container: str) -> None:
    """Fails with the container's last words."""
    deadline = time.monotonic() + STARTING
    while time.monotonic() < deadline:
        try:
            ask(url, "/health/ready")
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(docker.docker("logs", "--tail", "20", container))
