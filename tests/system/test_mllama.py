"""Llama 3.2 Vision through a whole system: what is said of pictures is what transformers says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import LLM, SamplingParams
from penstock.forms.aspects import AspectImages
from penstock.forms.pixels import Pixels
from testing.serving import Server
from tests.gateway.media import text
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.pictures import picture
from tests.system.seeing_models import MLLAMA_TOKEN, ROWS, SIDE, said_by_mllama, write_mllama
from tests.system.test_media import COUNT, FLAGS, ask, shown, tokens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FORM = AspectImages(pixels=Pixels(resample=2), tile=SIDE, rows=1 + ROWS)
TOKEN = tokenizer(MLLAMA_TOKEN).token_to_id(MLLAMA_TOKEN)
QUESTIONS: list[tuple[list[dict[str, Any]], list[Any]]] = [
    ([shown(1), text("z")], [picture(seed=1)]),
    ([shown(2, 90, 20), text("z")], [picture(90, 20, 2)]),
    ([text("xyz")], []),
    ([shown(1), shown(3, 31, 90), text("x")], [picture(seed=1), picture(31, 90, 3)]),
    (
        [shown(2), text("y"), shown(1), text("yz")],
        [picture(seed=2), picture(seed=1)],
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mllama(tmp_path_factory.mktemp("mllama") / "tiny-mllama")


@pytest.fixture(scope="module")
def seeing(folder: Path) -> Iterator[Server]:
    with Server(str(folder), *FLAGS) as server:
        yield server


def plain(ids: list[int], pictures: list[Any]) -> list[int]:
    """A prompt without pictures' rows: a token is left for each picture."""
    found = iter(ids)
    out: list[int] = []
    rows = [FORM.runs((each.height, each.width)).runs[0].rows for each in pictures]
    for token in found:
        if token == TOKEN:
            for _ in range(rows.pop(0) - 1):
                assert next(found) == TOKEN
        out.append(token)
    assert not rows
    return out


def test_served_answers_of_mllama_are_those_of_transformers(folder: Path, seeing: Server) -> None:
    answers = []
    for content, pictures in QUESTIONS:
        reply = ask(seeing.url, *content)
        asked = plain(reply["prompt_token_ids"], pictures)
        assert tokens(reply) == said_by_mllama(folder, asked, pictures, COUNT)
        answers.append(tokens(reply))
    assert re.search(r"model loaded.*backend\W+reference", seeing.stderr)
    assert answers[0] != answers[1], "the model looks"
    # The same again, from the prefix cache.
    assert [tokens(ask(seeing.url, *content)) for content, _ in QUESTIONS] == answers


def test_the_library_says_the_same(folder: Path, seeing: Server) -> None:
    content, pictures = QUESTIONS[0]
    told = tokens(ask(seeing.url, *content))
    prompt = f"{MLLAMA_TOKEN}z;assistant:"
    with LLM(str(folder), max_model_len=512, num_kv_blocks=256, dtype="float32") as llm:
        given: Any = {"prompt": prompt, "multi_modal_data": {"image": pictures[0]}}
        params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
        (answer,) = llm.generate([given], params)
    assert list(answer.outputs[0].token_ids) == told


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--attention-backend", "cpu"), "layers that attend to pictures alone"),
        (("--enable-lora",), "adapters"),
        (("--tensor-parallel-size", "2"), "layers that attend to pictures alone"),
    ],
)
def test_what_isnt_served_with_it_is_said(folder: Path, flags: tuple[str, ...], named: str) -> None:
    server = Server(str(folder), *FLAGS, *flags, wait=False)
    try:
        assert server.process.wait(timeout=120) != 0
    finally:
        server.stop()
    assert named in server.stderr


def test_a_picture_that_is_too_small_or_long_is_seen(seeing: Server) -> None:
    for width, height in ((1, 1), (200, 1)):
        reply = httpx.post(
            f"{seeing.url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": [shown(1, width, height)]}]},
            timeout=120,
        )
        assert reply.status_code == 200, reply.text
