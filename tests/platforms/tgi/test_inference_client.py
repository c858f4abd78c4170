"""Hugging Face's InferenceClient, given an address and no model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import InferenceClient, close_session, constants
from huggingface_hub.errors import ValidationError

from testing.pooling_models import save
from tests.gateway.fake_engine import CONTEXT, HELLO, FakeEngineClient
from tests.gateway.live_gateway import LiveGateway
from tests.gateway.pooling.pooling_engine import PoolingEngine
from tests.worker.pooling.late_models import SIZES, late_tokenizer

pytestmark = pytest.mark.timeout(300)
TEXT = f"{HELLO}0"
QUESTION = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module", autouse=True)
def online() -> Iterator[None]:
    """The library lets its own client ask nobody where the hub is switched off, as in tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        close_session()
        yield
    close_session()


@pytest.fixture(scope="module")
def client() -> Iterator[InferenceClient]:
    with LiveGateway(FakeEngineClient()) as gateway, InferenceClient(base_url=gateway.url) as made:
        yield made


def test_chat(client: InferenceClient) -> None:
    assert client.chat_completion(QUESTION).choices[0].message.content == TEXT
    chunks = client.chat_completion(QUESTION, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT


def test_text_generation(client: InferenceClient) -> None:
    assert client.text_generation("a") == TEXT
    assert "".join(client.text_generation("a", stream=True)) == TEXT
    told = client.text_generation("a", details=True, max_new_tokens=20, top_n_tokens=2)
    assert told.generated_text == TEXT
    assert told.details is not None
    assert told.details.generated_tokens == len(told.details.tokens)
    last = list(client.text_generation("a", stream=True, details=True))[-1]
    assert last.generated_text == TEXT
    assert last.details is not None
    assert last.details.finish_reason == "eos_token"
    with pytest.raises(ValidationError, match="max_new_tokens"):
        client.text_generation("a", max_new_tokens=CONTEXT)


def test_vectors(tmp_path: Path) -> None:
    save(tmp_path / "m", "BertModel", **SIZES)
    late_tokenizer(tmp_path / "m")
    engine = PoolingEngine(tmp_path / "m", tmp_path)
    with LiveGateway(engine) as gateway, InferenceClient(base_url=gateway.url) as client:
        vectors = client.feature_extraction(["w50 w51", "w50"], normalize=True)
        assert vectors.shape == (2, SIZES["hidden_size"])
        likeness = client.sentence_similarity("w50", other_sentences=["w50 w51", "w50"])
        assert likeness == pytest.approx([vectors[0] @ vectors[1], 1.0], abs=1e-5)


def test_classes(tmp_path: Path) -> None:
    labels = {0: "no", 1: "yes", 2: "maybe"}
    save(tmp_path / "m", "BertForSequenceClassification", **SIZES, id2label=labels)
    late_tokenizer(tmp_path / "m")
    engine = PoolingEngine(tmp_path / "m", tmp_path)
    with LiveGateway(engine) as gateway, InferenceClient(base_url=gateway.url) as client:
        found = client.text_classification("w50")
        assert {each.label for each in found} == set(labels.values())
        assert sum(each.score for each in found) == pytest.approx(1)
        assert client.text_classification("w50", top_k=1) == found[:1]
        raw = client.text_classification("w50", function_to_apply="none")
        assert [each.label for each in raw] == [each.label for each in found]
        assert sum(each.score for each in raw) != pytest.approx(1)
