"""How vectors are asked for and written: vLLM's fields of /v1/embeddings and /pooling, beside the
same vectors as numbers, converted by torch."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from testing.pooling_models import save
from tests.gateway.pooling.pooling_engine import pooling_gateway
from tests.worker.pooling.late_models import SIZES, late_tokenizer

TEXTS = ["w50 w51 . w70", "w80"]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("forms") / "m"
    save(made, "BertModel", **{**SIZES, "hidden_size": 48, "num_attention_heads": 3})
    late_tokenizer(made)
    return made


def written(vector: list[Any], dtype: str, endianness: str) -> bytes:
    """A vector's bytes, by torch and numpy."""
    numbers = torch.tensor(vector, dtype=torch.float32).to(DTYPES[dtype])
    width = torch.int32 if dtype == "float32" else torch.int16
    bits = numbers.view(width).numpy()
    return (bits.byteswap() if endianness == "big" else bits).tobytes()


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


async def vectors_of(client: httpx.AsyncClient, **body: Any) -> list[list[float]]:
    reply = (await posted(client, "/v1/embeddings", **body)).json()
    return [each["embedding"] for each in reply["data"]]


async def refused(client: httpx.AsyncClient, param: str, **body: Any) -> str:
    response = await client.post("/v1/embeddings", json={"input": TEXTS} | body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    return str(error["message"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("endianness", ["native", "little", "big"])
async def test_vectors_are_written_as_asked(
    folder: Path, tmp_path: Path, dtype: str, endianness: str
) -> None:
    how = {"embed_dtype": dtype, "endianness": endianness}
    async with pooling_gateway(folder, tmp_path) as client:
        for path, name in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
            plain = (await posted(client, path, input=TEXTS)).json()
            wanted = [written(each[name], dtype, endianness) for each in plain["data"]]
            packed = await posted(client, path, input=TEXTS, encoding_format="base64", **how)
            found = [base64.b64decode(each[name]) for each in packed.json()["data"]]
            assert found == wanted
            raw = await posted(client, path, input=TEXTS, encoding_format="bytes", **how)
            assert raw.headers["content-type"] == "application/octet-stream"
            told = json.loads(raw.headers["metadata"])
            assert told["model"] == plain["model"]
            assert told["usage"] == plain["usage"]
            for index, (place, one) in enumerate(zip(told["data"], wanted, strict=True)):
                assert raw.content[place["start"] : place["end"]] == one
                shape = list(np.array(plain["data"][index][name]).shape)
                assert (place["index"], place["shape"]) == (index, shape)
                assert place["embed_dtype"] == dtype
                assert place["endianness"] == ("big" if endianness == "big" else "little")
            bare = await posted(client, path, input=TEXTS, encoding_format="bytes_only", **how)
            assert bare.content == raw.content == b"".join(wanted)
            assert "metadata" not in bare.headers


async def test_more_vectors_than_a_header_describes(folder: Path, tmp_path: Path) -> None:
    many = {"input": ["w50"] * 300, "dimensions": 2}
    async with pooling_gateway(folder, tmp_path) as client:
        message = await refused(client, "encoding_format", encoding_format="bytes", **many)
        assert "bytes_only" in message
        bare = await posted(client, "/v1/embeddings", encoding_format="bytes_only", **many)
        assert len(bare.content) == 300 * 2 * 4


async def test_use_activation_says_what_normalize_says(folder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(folder, tmp_path) as client:
        for value in (True, False):
            one = await vectors_of(client, input=TEXTS, normalize=value)
            assert await vectors_of(client, input=TEXTS, use_activation=value) == one
            lengths = np.linalg.norm(np.array(one), axis=1)
            assert np.allclose(lengths, 1, atol=1e-5) is value
        both = {"normalize": True, "use_activation": False}
        assert "mean the same" in await refused(client, "normalize", **both)


async def test_a_text_is_cut_on_the_side_asked_for(folder: Path, tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(40, 70)]
    text = " ".join(words)
    async with pooling_gateway(folder, tmp_path) as client:
        for side, kept in (("left", words[-3:]), ("right", words[:3])):
            body = {"truncate_prompt_tokens": 5, "truncation_side": side}
            wanted = await vectors_of(client, input=" ".join(kept))
            assert await vectors_of(client, input=text, **body) == wanted
            ids = [int(word[1:]) for word in words]
            cut = ids[-5:] if side == "left" else ids[:5]
            assert await vectors_of(client, input=ids, **body) == await vectors_of(
                client, input=cut
            )
        message = await refused(client, "truncation_side", truncation_side="middle")
        assert "left, right" in message


async def test_a_conversation_is_embedded_by_the_template(folder: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "w51"}, {"role": "assistant", "content": "w53 w54"}]
    lines = "user: w51 assistant: w53 w54"
    async with pooling_gateway(folder, tmp_path, with_template=True) as client:
        for more, text in (
            ({}, lines),
            ({"add_generation_prompt": True}, f"{lines} assistant:"),
            ({"continue_final_message": True}, lines),
            ({"chat_template_kwargs": {"language": "de"}}, lines),
        ):
            wanted = await vectors_of(client, input=text, add_special_tokens=False)
            assert await vectors_of(client, messages=messages, **more) == wanted
        both = {"add_generation_prompt": True, "continue_final_message": True}
        for param, body in (
            ("continue_final_message", both),
            ("chat_template", {"chat_template": "{{ messages }}"}),
            ("chat_template_kwargs", {"chat_template_kwargs": {"tools": []}}),
            ("truncate_prompt_tokens", {"truncate_prompt_tokens": 5}),
        ):
            await refused(client, param, input=None, messages=messages, **body)


async def test_a_conversation_without_a_template(folder: Path, tmp_path: Path) -> None:
    async with pooling_gateway(folder, tmp_path) as client:
        messages = [{"role": "user", "content": "w50"}]
        message = await refused(client, "messages", input=None, messages=messages)
        assert "--chat-template" in message
