"""Pooling models served: the SDK, scores in transformers' order, wrong requests, and deaths."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest
import torch

from penstock import LLM, PoolingParams, SamplingParams
from testing.pooling_models import VOCAB, cosine_distance, save
from testing.serving import Server, wait_until

pytestmark = [pytest.mark.timeout(600)]

TEXTS = [
    "A kitten sleeps on the sofa.",
    "The stock market fell by two percent.",
    "Photosynthesis turns light into sugar.",
    "A young cat is taking a nap.",
]


@pytest.fixture(scope="module")
def minilm() -> Iterator[Server]:
    running = Server("all-minilm-l6-v2")
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def reference() -> Callable[[str], np.ndarray]:
    """Embeddings as transformers makes them."""
    import transformers

    from penstock.prepare.resolve import find_packaged, installed_path

    packaged = find_packaged("all-minilm-l6-v2")
    assert packaged is not None
    folder = str(installed_path(packaged))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def embed(text: str) -> np.ndarray:
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return (hidden.mean(0) / hidden.mean(0).norm()).numpy()

    return embed


def test_the_sdk_gets_transformers_embeddings(
    minilm: Server, reference: Callable[[str], np.ndarray]
) -> None:
    client = openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="x", max_retries=0)
    # Without encoding_format the SDK asks for base64 and decodes it.
    decoded = client.embeddings.create(model=minilm.model, input=TEXTS)
    plain = client.embeddings.create(model=minilm.model, input=TEXTS, encoding_format="float")
    assert [item.index for item in decoded.data] == [0, 1, 2, 3]
    for text, one, other in zip(TEXTS, decoded.data, plain.data, strict=True):
        assert one.embedding == other.embedding
        assert cosine_distance(np.array(one.embedding), reference(text)) < 1e-4
    cut = client.embeddings.create(model=minilm.model, input=TEXTS[0], dimensions=8).data[0]
    first = np.array(plain.data[0].embedding[:8])
    assert np.abs(np.array(cut.embedding) - first / np.sqrt((first**2).sum())).max() < 1e-6
    raw = client.embeddings.with_raw_response.create(
        model=minilm.model, input=TEXTS[0], encoding_format="base64"
    )
    data = raw.http_response.json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(data), "<f4").tolist() == plain.data[0].embedding
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 4 * 5


def test_ollamas_client_gets_the_same(minilm: Server) -> None:
    sdk = openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="x", max_retries=0)
    client = ollama.Client(minilm.url)
    found = client.embed(f"{minilm.model}:latest", TEXTS)
    wanted = sdk.embeddings.create(model=minilm.model, input=TEXTS, encoding_format="float")
    assert found.embeddings == [item.embedding for item in wanted.data]
    assert found.prompt_eval_count == wanted.usage.prompt_tokens
    assert list(client.embeddings(minilm.model, TEXTS[0]).embedding) == found.embeddings[0]
    assert client.show(minilm.model).capabilities == ["embedding"]
    # Texts that are too long are cut, unless that is turned off.
    assert client.embed(minilm.model, "word " * 5000).prompt_eval_count == 256
    with pytest.raises(ollama.ResponseError, match="at most 256 tokens"):
        client.embed(minilm.model, "word " * 5000, truncate=False)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_line_asks_for_an_embedding(minilm: Server) -> None:
    assert len(minilm.try_it()["data"][0]["embedding"]) == 384


def test_scores_and_ranks_are_those_of_cosines(
    minilm: Server, reference: Callable[[str], np.ndarray]
) -> None:
    query, documents = TEXTS[0], TEXTS[1:]
    expected = [float(reference(query) @ reference(text)) for text in documents]
    for path in ("/score", "/v1/score"):
        status, answer = minilm.post(path, {"text_1": query, "text_2": documents})
        assert status == 200, answer
        found = [item["score"] for item in answer["data"]]
        assert np.abs(np.array(found) - expected).max() < 1e-4
    order = sorted(range(3), key=lambda i: -expected[i])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = {"model": minilm.model, "query": query, "documents": documents, "top_n": 2}
        status, answer = minilm.post(path, body)
        assert status == 200, answer
        assert [item["index"] for item in answer["results"]] == order[:2]
        assert answer["results"][0]["document"] == {"text": TEXTS[3]}
    body = {"query": query, "documents": [{"text": t} for t in documents]}
    status, answer = minilm.post("/rerank", {**body, "return_documents": False})
    assert [item["index"] for item in answer["results"]] == order
    assert "document" not in answer["results"][0]
    status, answer = minilm.post("/pooling", {"input": query})
    rows = np.array(answer["data"][0]["data"])
    assert rows.shape == (answer["usage"]["prompt_tokens"], 384)
    status, answer = minilm.post("/pooling", {"input": [[101, 102]], "task": "embed"})
    assert len(answer["data"][0]["data"]) == 384


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": "x"}, "generates no text"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "generates no text"),
    ("/classify", {"input": "x"}, "this model supports embed, token_embed"),
    ("/pooling", {"input": "x", "task": "classify"}, "this model supports embed, token_embed"),
    ("/v1/embeddings", {"input": "x " * 300}, "has 302 tokens; this model takes at most 256"),
    ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 300}, "1 to 256"),
    ("/v1/embeddings", {"input": "x", "dimensions": 385}, "1 to 384, not 385"),
    ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"input": []}, "1 to 2048"),
    ("/v1/embeddings", {"input": ["x", ""]}, "input[1] is empty"),
    ("/v1/embeddings", {"input": ["x", 3]}, "mixes types"),
    ("/v1/embeddings", {"input": [30_522]}, "token id 30522 is not in the vocabulary"),
    ("/v1/embeddings", {"input": ["x"] * 2049}, "1 to 2048"),
    ("/v1/embeddings", {"inputs": "x"}, "unknown field inputs; did you mean input?"),
    ("/v1/embeddings", {}, "input is missing"),
    ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "2 first and 3 second"),
    ("/score", {"text_1": "a"}, "one of text_2, documents, items, data_2"),
    ("/rerank", {"query": "x", "documents": []}, "1 to 2048"),
    ("/rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n is -1"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_requests_are_told_what_is_allowed(minilm: Server, case: int) -> None:
    path, body, reason = WRONG[case]
    status, answer = minilm.post(path, body)
    assert status == 400, answer
    assert reason in answer["error"]["message"]


def test_another_model_and_a_cut_text(minilm: Server) -> None:
    assert minilm.post("/v1/embeddings", {"model": "y", "input": "x"})[0] == 404
    body = {"input": "x " * 300, "truncate_prompt_tokens": -1}
    status, answer = minilm.post("/v1/embeddings", body)
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == 256


@pytest.mark.parametrize("title", ["worker 0", "engine"])
def test_a_death_under_load_changes_no_bit(minilm: Server, title: str) -> None:
    inputs = [f"{TEXTS[n % 4]} {n} " * (1 + n % 5) for n in range(40)]
    body = {"input": inputs, "encoding_format": "base64"}
    undisturbed = _vectors(minilm, body)
    answers: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(_vectors(minilm, body))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: answers or minilm.get("/status")[1]["gateway"]["open_requests"] == 4)
    os.kill(minilm.child(title), signal.SIGKILL)
    for thread in threads:
        thread.join(400)
    assert len(answers) == 4
    assert all(answer == undisturbed for answer in answers)
    alone = [_vectors(minilm, {**body, "input": text})[0] for text in inputs[:5]]
    assert alone == undisturbed[:5]


def _vectors(server: Server, body: dict[str, Any]) -> list[str]:
    status, answer = server.post("/v1/embeddings", body, timeout=400)
    assert status == 200, answer
    return [item["embedding"] for item in answer["data"]]


def test_the_library_and_a_cross_encoder(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    folder = tmp_path / "cross"
    model = save(folder, "BertForSequenceClassification", num_labels=1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.BertProcessing(("w2", 2), ("w1", 1))
    tokenizer.save(str(folder / "tokenizer.json"))
    query, documents = "w9 w8 w7", [f"w{n} w{n + 3} w{VOCAB - n}" for n in range(10, 20)]
    expected = []
    for text in documents:
        pair = tokenizer.encode(query, text)
        with torch.inference_mode():
            logits = model(
                torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.type_ids])
            ).logits
        expected.append(float(logits[0, 0].sigmoid()))
    with LLM(str(folder), cache_dir=str(tmp_path / "cache")) as llm:
        scores = [out.outputs.score for out in llm.score(query, documents, use_tqdm=False)]
        assert np.abs(np.array(scores) - expected).max() < 1e-4
        (classes,) = llm.classify("w9 w8", use_tqdm=False)
        assert classes.outputs.num_classes == 1
        with pytest.raises(ValueError, match="this model supports classify, token_embed"):
            llm.embed("w9")
        with pytest.raises(ValueError, match="generates no text"):
            llm.generate("w9", SamplingParams(max_tokens=1), use_tqdm=False)
    with LLM(str(folder), convert="embed", cache_dir=str(tmp_path / "cache")) as llm:
        outputs = llm.embed(["w9 w8", {"prompt_token_ids": [1, 9, 8, 2]}], use_tqdm=False)
        assert outputs[0].outputs.embedding == outputs[1].outputs.embedding
        assert len(outputs[0].outputs.embedding) == outputs[0].outputs.hidden_size == 36
        params = PoolingParams(normalize=False, truncate_prompt_tokens=3)
        (rows,) = llm.encode("w9 w8 w7 w6", params, use_tqdm=False)
        assert rows.outputs.data.shape == (3, 36)
        (same,) = llm.score("w9 w8", "w9 w8", use_tqdm=False)
        assert abs(same.outputs.score - 1) < 1e-6


def test_a_generating_model_says_so(server: Server) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "x"}),
        ("/pooling", {"input": "x"}),
        ("/score", {"text_1": "x", "text_2": "y"}),
        ("/rerank", {"query": "x", "documents": ["y"]}),
        ("/classify", {"input": "x"}),
    ):
        status, answer = server.post(path, body)
        assert status == 400
        assert "generates text; it gives no embeddings" in answer["error"]["message"]
