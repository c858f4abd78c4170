"""Real systems for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testing import preloaded
from testing.serving import Server
from testing.tiny_models import write_gguf
from testing.trained.seeing import FOLDER


@pytest.fixture(scope="session", autouse=True)
def plain_systems() -> Iterator[None]:
    """Systems draft nothing unless a test asks for it: a request that is sent for a second time
    would be over in a few steps, drafted from its first answer, and tests that stop, kill or count
    something in the middle of a stream need the middle."""
    Server.unless_said = {"--speculative-config": "off"}
    yield
    Server.unless_said = {}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One running system with the default model and the default of drafts, for all tests that leave
    it as it was. Its processes are executed."""
    with preloaded.executed():
        running = Server("--speculative-config", "auto", "--warm-grammars", "true")
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def seeing_server() -> Iterator[Server]:
    """One running system with the tiny model that was trained to see, for all tests that leave it
    as it was."""
    with Server(str(FOLDER), "--num-kv-blocks", "512") as running:
        yield running


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A one-layer model with random weights, for tests to which it doesn't matter what is said.

    Its context is 128 tokens, and it has no chat template.
    """
    return str(write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts a system with flags of one's own: `start_server("--gateways", "2")`.

    Each is stopped after the test, and must then have left no process, socket or folder behind.
    """
    started: list[Server] = []

    def start(*arguments: str, **keywords: Any) -> Server:
        running = Server(*arguments, **{**keywords, "wait": False})
        started.append(running)
        if keywords.get("wait", True):
            running.wait_ready()
        return running

    yield start
    errors = []
    for running in started:
        try:
            running.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("servers that did not end well", errors)
