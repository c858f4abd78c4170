"""Texts that are compared token by token: how much of their vectors is in memory at once, and what
is refused."""

from __future__ import annotations

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.pool_request import PoolResult
from penstock.protocol.common import Pooling
from penstock_gateway.pooling import fields, scoring
from penstock_gateway.pooling.scoring import grouped
from testing.pooling_models import save
from tests.gateway.pooling.pooling_engine import PoolingEngine, pooling_gateway
from tests.met import met
from tests.worker.pooling.late_models import SIZES as SIZES_OF_MODEL
from tests.worker.pooling.late_models import late_tokenizer, save_late

DOCUMENTS = [f"w{50 + n} w{51 + n} w{60 + n}" for n in range(12)]
SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late") / "m"
    save_late(folder)
    return folder


@given(st.data(), SIZES, st.integers(1, 30))
def test_groups_are_all_pairs_in_order_and_as_large_as_fits(
    data: st.DataObject, sizes: list[int], most: int
) -> None:
    place = st.integers(0, len(sizes) - 1)
    pairs = data.draw(st.lists(st.tuples(place, place), min_size=5, max_size=20))
    groups = list(grouped(pairs, sizes, most))
    met("several groups", len(groups) > 1)
    assert [pair for group in groups for pair in group] == pairs

    def numbers(group: list[tuple[int, int]]) -> int:
        return sum(sizes[place] for place in {place for pair in group for place in pair})

    assert all(len(group) == 1 or numbers(group) <= most for group in groups)
    for group, following in pairwise(groups):
        assert numbers([*group, following[0]]) > most


async def test_all_texts_of_a_request_are_computed_alike(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of two kinds could not be compared. The engine core that has least to do is another
    one at each look."""
    looks, held = count(), []
    pool = PoolingEngine.pool

    async def watched(self: PoolingEngine, *given: Any, **more: Any) -> PoolResult:
        held.append(more["terms"].fingerprint)
        return await pool(self, *given, **more)

    monkeypatch.setattr(PoolingEngine, "pool", watched)
    monkeypatch.setattr(PoolingEngine, "fingerprint_for", lambda *_: f"of look {next(looks)}")
    monkeypatch.setattr(scoring, "MAX_NUMBERS", 300)
    async with pooling_gateway(model, tmp_path) as client:
        reply = await client.post("/score", json={"text_1": "w50 w51", "text_2": DOCUMENTS})
    assert reply.status_code == 200, reply.text
    assert held == ["of look 0"] * (1 + len(DOCUMENTS))


async def test_few_vectors_are_in_memory_and_scores_stay_the_same(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"text_1": "w50 w51", "text_2": DOCUMENTS}
    async with pooling_gateway(model, tmp_path) as client:
        wanted = (await client.post("/score", json=body)).json()
    asked: list[list[int]] = []
    pool = PoolingEngine.pool

    async def watched(
        self: PoolingEngine, ids: list[int], pooling: Pooling, **terms: Any
    ) -> PoolResult:
        asked.append(ids)
        return await pool(self, ids, pooling, **terms)

    monkeypatch.setattr(PoolingEngine, "pool", watched)
    groups: list[int] = []

    def watched_groups(*given: Any) -> Any:
        for group in grouped(*given):
            groups.append(len(group))
            yield group

    monkeypatch.setattr(scoring, "MAX_NUMBERS", 300)
    monkeypatch.setattr(scoring, "grouped", watched_groups)
    async with pooling_gateway(model, tmp_path) as client:
        found = (await client.post("/score", json=body)).json()
    assert found["data"] == wanted["data"]
    assert found["usage"] == wanted["usage"]
    assert len(groups) > 2
    assert len(asked) == len(DOCUMENTS) + 1, "the query is computed once"


async def test_more_vectors_of_tokens_than_a_reply_holds_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "MAX_NUMBERS", 100)
    async with pooling_gateway(model, tmp_path) as client:
        one = await client.post("/pooling", json={"input": "w50"})
        assert one.status_code == 200, one.text
        many: httpx.Response = await client.post("/pooling", json={"input": DOCUMENTS})
    assert many.status_code == 400
    assert "at most 100 numbers are given in one reply" in many.json()["error"]["message"]


async def test_one_vector_for_each_text_is_not_counted_by_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is cut to some of its numbers."""
    folder = tmp_path / "m"
    save(folder, "BertModel", **SIZES_OF_MODEL)
    late_tokenizer(folder)
    monkeypatch.setattr(fields, "MAX_NUMBERS", 8)
    body = {"input": DOCUMENTS, "task": "embed", "dimensions": 8}
    async with pooling_gateway(folder, tmp_path) as client:
        reply = await client.post("/pooling", json=body)
    assert reply.status_code == 200, reply.text
    assert [len(each["data"]) for each in reply.json()["data"]] == [8] * len(DOCUMENTS)
