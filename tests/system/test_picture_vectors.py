"""CLIP and SigLIP served: vectors of texts and pictures over HTTP and in the library."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from penstock import LLM, PoolingParams
from penstock.prepare import prepare
from penstock.protocol.common import Pooling, TokenSampling
from testing.in_process import Numerics, Way
from testing.serving import Server
from tests.system.in_process_media import Asked, Deaths, MediaSystem, item_of, shown
from tests.worker.pooling.space_models import SIDE, SpaceModel, unit, write_clip, write_siglip

pytestmark = [pytest.mark.timeout(600)]

CLOSE = 1e-4


def drawn(seed: int, width: int = 41, height: int = 33) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def with_picture(picture: Image.Image, *more: dict[str, Any]) -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": uri(picture)}}
    return [{"role": "user", "content": [part, *more]}]


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> SpaceModel:
    return write_siglip(tmp_path_factory.mktemp("siglip") / "m")


@pytest.fixture(scope="module")
def server(siglip: SpaceModel) -> Iterator[Server]:
    with Server(str(siglip.folder)) as running:
        yield running


def embedded(server: Server, **body: Any) -> np.ndarray:
    status, answer = server.post("/v1/embeddings", body)
    assert status == 200, answer
    return np.array([each["embedding"] for each in answer["data"]])


def test_a_server_gives_vectors_of_both(server: Server, siglip: SpaceModel) -> None:
    texts, picture = ["w5 w9 w3", "w7"], drawn(1)
    found = embedded(server, input=texts)
    for vector, text in zip(found, texts, strict=True):
        assert np.abs(vector - unit(siglip.of_text(text))).max() < CLOSE
    (seen,) = embedded(server, messages=with_picture(picture))
    assert np.abs(seen - unit(siglip.of_picture(picture))).max() < CLOSE
    (raw,) = embedded(server, messages=with_picture(picture), normalize=False)
    assert np.abs(raw - siglip.of_picture(picture)).max() < CLOSE * 10
    (said,) = embedded(server, messages=[{"role": "user", "content": "w7"}])
    assert said.tobytes() == found[1].tobytes()
    status, answer = server.post("/pooling", {"messages": with_picture(picture)})
    assert status == 200, answer
    assert answer["data"][0]["data"] == seen.tolist()
    assert answer["usage"]["prompt_tokens"] == 1
    status, answer = server.post("/score", {"text_1": "w7", "text_2": texts})
    assert status == 200, answer
    cosines = [float(unit(siglip.of_text("w7")) @ unit(siglip.of_text(text))) for text in texts]
    assert np.abs([each["score"] for each in answer["data"]] - np.array(cosines)).max() < CLOSE
    pictures = {"content": [with_picture(drawn(each))[0]["content"][0] for each in (1, 2)]}
    status, answer = server.post("/score", {"text_1": "w7", "text_2": pictures})
    assert status == 200, answer
    text = unit(siglip.of_text("w7"))
    cosines = [float(text @ unit(siglip.of_picture(drawn(each)))) for each in (1, 2)]
    assert np.abs([each["score"] for each in answer["data"]] - np.array(cosines)).max() < CLOSE


def test_openais_sdk_sends_messages_as_vllms_users_do(server: Server, siglip: SpaceModel) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    body = {
        "model": server.model,
        "messages": with_picture(drawn(2)),
        "encoding_format": "float",
    }
    found = client.post("/embeddings", cast_to=openai.types.CreateEmbeddingResponse, body=body)
    wanted = unit(siglip.of_picture(drawn(2)))
    assert np.abs(np.array(found.data[0].embedding) - wanted).max() < CLOSE


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"messages": with_picture(drawn(1), {"type": "text", "text": "w1"})},
            "one image without text",
        ),
        ({"messages": [*with_picture(drawn(1)), *with_picture(drawn(2))]}, "2 images"),
        ({"messages": []}, "messages has 0"),
        ({"messages": with_picture(drawn(1)), "input": "w1"}, "either input or messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "neither text nor an image"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "allowed: text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "uuid": "a"}]}]},
            "takes text and pictures only",
        ),
        ({"input": "w1 " * 30}, "at most 20"),
    ],
)
def test_what_is_no_input_is_refused(server: Server, body: dict[str, Any], said: str) -> None:
    status, answer = server.post("/v1/embeddings", body)
    assert status == 400
    assert said in answer["error"]["message"], answer


def test_it_doesnt_chat(server: Server) -> None:
    status, answer = server.post("/v1/chat/completions", {"messages": with_picture(drawn(1))})
    assert status == 400
    assert "generates no text" in answer["error"]["message"]


def test_the_library_embeds_both(tmp_path: Path) -> None:
    model = write_clip(tmp_path / "m")
    pictures = [drawn(3), drawn(4, 28, 60)]
    with LLM(str(model.folder)) as llm:
        prompts: list[Any] = [
            "w5 w9",
            *({"prompt": "", "multi_modal_data": {"image": each}} for each in pictures),
        ]
        found = [np.array(each.outputs.embedding) for each in llm.embed(prompts, use_tqdm=False)]
        wanted = [model.of_text("w5 w9"), *map(model.of_picture, pictures)]
        for ours, theirs in zip(found, wanted, strict=True):
            assert np.abs(ours - unit(theirs)).max() < CLOSE
        part = {"type": "image_pil", "image_pil": pictures[0]}
        (score,) = llm.score("w5 w9", {"content": [part]}, use_tqdm=False)
        assert abs(score.outputs.score - float(unit(wanted[0]) @ unit(wanted[1]))) < CLOSE
        params = PoolingParams(dimensions=8)
        (cut,) = llm.embed([prompts[1]], pooling_params=params, use_tqdm=False)
        assert np.abs(np.array(cut.outputs.embedding) - unit(wanted[1][:8])).max() < CLOSE
        for wrong in (
            {"prompt": "w1", "multi_modal_data": {"image": pictures[0]}},
            {"prompt": "", "multi_modal_data": {"image": pictures}},
        ):
            with pytest.raises(ValueError, match="or one picture"):
                llm.embed([wrong], use_tqdm=False)


def test_vectors_outlive_deaths_bit_for_bit(siglip: SpaceModel, tmp_path: Path) -> None:
    """Pictures and texts, together and alone, with a worker and an engine core that die."""
    folder = prepare(str(siglip.folder), cache_dir=tmp_path / "cache")
    asked: dict[int, Asked] = {}
    pooling = Pooling("embed", normalize=True)
    for number in range(4):
        path = tmp_path / f"picture {number}"
        pixels = np.asarray(drawn(number, SIDE, SIDE))[None]
        media = shown((item_of(path, "image", "pixels", pixels, 1), 0))
        asked[number] = Asked([0], 1, TokenSampling(0), media, (path,), pooling)
    for number in range(4, 8):
        words = siglip.ids(f"w{number} w{number + 9}")
        asked[number] = Asked(words, 1, TokenSampling(0), None, (), pooling)  # type: ignore[arg-type]
    way = Way(16, 64, 64, max_model_len=20)
    alone: dict[int, bytes] = {}
    for number, each in asked.items():
        own = MediaSystem(folder, Numerics("cpu", "float32"), way)
        own.run({number: each})
        alone |= own.vectors
    for deaths in (Deaths(), Deaths(worker=1), Deaths(core=1)):
        crowd = MediaSystem(folder, Numerics("cpu", "float32"), way, deaths)
        crowd.run(asked)
        assert crowd.vectors == alone
