"""What pooling models are given, against transformers' own tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from penstock.client.pool_request import check_task, pooling_model
from penstock.client.pooling_inputs import cosine, ids_input, limit_of, pair_up, text_input
from penstock.client.request_bounds import check_generates
from penstock.errors import InvalidRequest
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults
from penstock.protocol.common import Vectors
from penstock.protocol.to_frontend import Limits, Welcome
from penstock.request.pooling_params import PoolingParams, check_dimensions
from penstock.text.tokenizer import Tokenizer as Ours
from testing.tiny_models import byte_level_tokenizer
from tests.met import met
from tests.thinning import part

WELCOME = Welcome(
    version=1,
    boot="00",
    model="m",
    digest="d",
    created=0,
    limits=Limits(max_model_len=12, vocab_size=40_000, max_waiting_requests=8, max_num_seqs=4),
    generation=GenerationDefaults(),
    add_bos=False,
    seed=None,
    pooling=PoolingConfig(mode="mean", normalize=True, size=8, dimensions=(2, 4)),
    pooling_tasks=("embed",),
)


def _roberta() -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    ends = [("<|im_end|>", tokenizer.token_to_id("<|im_end|>"))]
    begins = [("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))]
    tokenizer.post_processor = processors.RobertaProcessing(ends[0], begins[0])
    return tokenizer


@pytest.fixture(scope="module", params=["bert", "roberta"])
def both(request: Any, tmp_path_factory: Any, minilm_folder: Path) -> tuple[Ours, Any]:
    """Ours and transformers' of the same file."""
    import transformers

    folder = tmp_path_factory.mktemp("tokenizer")
    content = (minilm_folder / "tokenizer.json").read_text()
    if request.param == "roberta":
        content = _roberta().to_str()
    (folder / "tokenizer.json").write_text(content)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": "right"})
    )
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    return Ours.from_bytes(content.encode(), add_bos=False, bos_token_id=None), theirs


@settings(max_examples=part(60, 1 / 3))
@given(
    st.text("abc déß.,! 日", min_size=15, max_size=40) | st.text("abc déß.,! 日", max_size=40),
    st.none() | st.text("abc déß.,! 日", min_size=1, max_size=40),
    st.integers(4, 8) | st.none() | st.integers(4, 20),
    st.sampled_from(["left", "right"]),
)
def test_pairs_and_cuts_are_those_of_transformers(
    both: tuple[Ours, Any], text: str, pair: str | None, limit: int | None, side: str
) -> None:
    ours, theirs = both
    theirs.truncation_side = side
    ids, types = ours.encode_typed(text, pair, limit=limit, keeps_end=side == "left")
    more = {} if limit is None else {"truncation": True, "max_length": limit}
    expected = theirs(text, pair, return_token_type_ids=True, **more)
    assert ids == expected["input_ids"]
    met("cut", limit is not None and len(ids) == limit)
    met("a pair", pair is not None)
    assert list(types) == expected["token_type_ids"]


def test_a_text_too_long_is_refused_or_cut(both: tuple[Ours, Any]) -> None:
    ours, _ = both
    with pytest.raises(InvalidRequest, match="at most 12"):
        text_input("a b " * 30, None, ours, WELCOME, limit=None)
    with pytest.raises(InvalidRequest, match="has 4000 characters; at most 768"):
        text_input("a b " * 1000, None, ours, WELCOME, limit=None)
    assert len(text_input("a b " * 1000, None, ours, WELCOME, limit=12).prompt_token_ids) == 12
    with pytest.raises(InvalidRequest, match="lone surrogates"):
        text_input("\ud800", None, ours, WELCOME, limit=None)


def test_token_ids_lose_their_first_ones() -> None:
    assert ids_input(list(range(9)), WELCOME, limit=4).prompt_token_ids == [5, 6, 7, 8]
    first = ids_input(list(range(9)), WELCOME, limit=4, side="right")
    assert first.prompt_token_ids == [0, 1, 2, 3]
    for ids, reason in (([], "is empty"), ([40_000], "not in the vocabulary"), ([1] * 13, "12")):
        with pytest.raises(InvalidRequest, match=reason):
            ids_input(ids, WELCOME, limit=None)


def test_limits() -> None:
    assert [limit_of(value, WELCOME) for value in (None, -1, 5)] == [None, 12, 5]
    for value in (0, -2, 13):
        with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
            limit_of(value, WELCOME)
    assert pair_up(1, 2) == [(0, 0), (0, 1)]
    assert pair_up(2, 2) == [(0, 0), (1, 1)]
    with pytest.raises(InvalidRequest, match="2 first and 3 second"):
        pair_up(2, 3)
    check_dimensions(4, pooling_model(WELCOME))
    for value, reason in ((0, "1 to 8"), (9, "1 to 8"), (3, "can be cut to 2, 4, 8")):
        with pytest.raises(InvalidRequest, match=reason):
            check_dimensions(value, pooling_model(WELCOME))


def test_the_wrong_kind_of_model_is_said() -> None:
    with pytest.raises(InvalidRequest, match="generates no text"):
        check_generates(WELCOME)
    with pytest.raises(InvalidRequest, match="this model supports embed"):
        check_task("classify", WELCOME)


@pytest.mark.parametrize("field", [{"dimensions": True}, {"task": "x"}, {"normalize": 1}])
def test_parameters_are_checked(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        PoolingParams(**field)


def test_vectors_are_whole() -> None:
    assert Vectors((2, 3), bytes(24)).is_sound()
    for shape, size in (((2, 3), 20), ((0,), 0), ((), 4), ((1, 1, 1), 4), ((-1, -1), 4)):
        assert not Vectors(shape, bytes(size)).is_sound()
    assert cosine([1.0, 0.0], [2.0, 0.0]) == 1.0
    assert cosine([0.0], [1.0]) == 0.0
