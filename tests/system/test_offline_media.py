"""Scripts in the manner of vLLM's offline examples with pictures and sounds, with another import
line. As in test_offline_scripts, the engine is there already."""

from __future__ import annotations

import gc
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import AsyncLLM
from testing.serving import Server
from testing.trained import hearing as heard
from tests.system.test_offline_scripts import endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).parent / "offline_media"


@pytest.fixture(scope="module")
def hearing_server() -> Iterator[Server]:
    with Server(str(heard.FOLDER), "--num-kv-blocks", "512") as running:
        yield running


def run(script: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    start = AsyncLLM._start

    async def dial(self: AsyncLLM) -> None:
        self._endpoint = endpoint(server)
        await start(self)

    monkeypatch.setattr(AsyncLLM, "_start", dial)
    runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    gc.collect()  # Where a script ends with its interpreter, nothing holds its LLM any longer.


def test_pictures(seeing_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run("vision_language.py", seeing_server, monkeypatch)


def test_sounds(hearing_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run("audio_language.py", hearing_server, monkeypatch)
