"""What models for late interaction are given of a text, and how their vectors are compared."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import late_interaction
from penstock.client.late_interaction import max_sim
from penstock.client.pool_request import PoolResult
from penstock.client.pooling_inputs import PoolInput, text_input
from penstock.errors import InvalidRequest
from penstock.model.pooling_config import LateInteraction, PoolingConfig
from penstock.protocol.common import Pooling, Vectors
from penstock.request.pooling_params import check_input_type
from penstock.text.tokenizer import Tokenizer
from tests.met import met
from tests.shared.client.test_pooling_inputs import WELCOME
from tests.worker.pooling.late_models import SPECIAL, late_tokenizer

CLS, SEP, MASK, QUERY, DOCUMENT, POINT = (
    SPECIAL.index(word) for word in ("[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", ".")
)
LATE = LateInteraction(
    dense=(),
    size=4,
    query_prefix=QUERY,
    document_prefix=DOCUMENT,
    query_length=8,
    filling=MASK,
    skipped=(POINT, SPECIAL.index("!")),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("late")
    late_tokenizer(folder)
    content = (folder / "tokenizer.json").read_bytes()
    return Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)


def _read(
    tokenizer: Tokenizer, text: str, late: LateInteraction = LATE, **how: object
) -> PoolInput:
    pooling = PoolingConfig(mode="cls", normalize=True, size=4, late=late)
    welcome = msgspec.structs.replace(WELCOME, pooling=pooling)
    return text_input(text, None, tokenizer, welcome, **{"limit": None, **how})  # type: ignore[arg-type]


def test_a_query_is_filled_up(tokenizer: Tokenizer) -> None:
    found = _read(tokenizer, "w50 .", role="query")
    assert found.prompt_token_ids == [CLS, QUERY, 50, POINT, SEP, MASK, MASK, MASK]
    assert found.kept is None
    assert found.asked(Pooling("token_embed")).seen == 5
    seeing = msgspec.structs.replace(LATE, sees_filling=True)
    assert _read(tokenizer, "w50 .", seeing, role="query").seen == 0
    plain = msgspec.structs.replace(LATE, query_length=0, query_prefix=None)
    assert _read(tokenizer, "w50", plain, role="query") == PoolInput([CLS, 50, SEP])


def test_a_longer_query_is_whole_unless_it_is_cut(tokenizer: Tokenizer) -> None:
    text = " ".join(f"w{number}" for number in range(50, 58))
    whole = [CLS, QUERY, *range(50, 58), SEP]
    assert _read(tokenizer, text, role="query") == PoolInput(whole)
    cut = _read(tokenizer, text, role="query", limit=12)
    assert cut == PoolInput([CLS, QUERY, *range(50, 55), SEP])
    with pytest.raises(InvalidRequest, match="has 13 tokens; this model takes at most 12"):
        _read(tokenizer, text + " w60 w61", role="query")


def test_a_documents_punctuation_has_no_vector(tokenizer: Tokenizer) -> None:
    found = _read(tokenizer, "w50 . w51 !")
    assert found.prompt_token_ids == [CLS, DOCUMENT, 50, POINT, 51, SPECIAL.index("!"), SEP]
    assert found.kept == (0, 1, 2, 4, 6)
    numbers = np.arange(14, dtype="<f4")
    kept = found.result(PoolResult(Vectors((7, 2), numbers.tobytes()), 7))
    assert kept.rows() == numbers.reshape(7, 2)[[0, 1, 2, 4, 6]].tolist()
    assert kept.vectors.is_sound()
    assert kept.prompt_tokens == 7
    assert _read(tokenizer, "w50").kept is None
    assert len(_read(tokenizer, "w50 " * 20, limit=12).prompt_token_ids) == 12
    bare = msgspec.structs.replace(LATE, document_prefix=None)
    first = msgspec.structs.replace(bare, skips_first=True, skipped=())
    assert _read(tokenizer, "w50", first).kept == (1, 2)
    assert _read(tokenizer, "w50 w51", first, role="query").kept == (1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(InvalidRequest, match="only tokens that this model doesn't compare"):
        _read(tokenizer, ". !", bare, add_special=False)


def test_a_score_is_the_sum_of_the_best_products() -> None:
    generator = np.random.default_rng(3)
    query, document = generator.normal(size=(5, 16)), generator.normal(size=(9, 16))
    best = [
        max(sum(float(a * b) for a, b in zip(one, two, strict=True)) for two in document)
        for one in query
    ]
    results = [
        PoolResult(Vectors(each.shape, each.astype("<f4").tobytes()), len(each))
        for each in (query, document)
    ]
    assert abs(max_sim(*results) - sum(best)) < 1e-5


def test_other_models_know_no_roles() -> None:
    assert WELCOME.pooling is not None
    check_input_type(None, WELCOME.pooling)
    for role in ("query", "document"):
        with pytest.raises(InvalidRequest, match="input_type is for models for late interaction"):
            check_input_type(role, WELCOME.pooling)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 300), st.integers(0, 9))
def test_scores_of_long_texts_are_computed_in_pieces(
    query: int, document: int, at_once: int, seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    one, other = (numbers.standard_normal((rows, 4)).astype("<f4") for rows in (query, document))
    first, second = (
        PoolResult(Vectors(each.shape, each.tobytes()), len(each)) for each in (one, other)
    )
    met("several pieces", query * document > at_once)
    wanted = sum(max(float(a @ b) for b in other.astype(float)) for a in one.astype(float))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_interaction, "PRODUCTS_AT_ONCE", at_once)
        assert abs(max_sim(first, second) - wanted) < 1e-4
