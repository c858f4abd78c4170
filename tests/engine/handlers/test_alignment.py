"""Requests for the times of tokens: what is refused, and which answers a worker may give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.errors import InvalidRequest
from penstock.model.layer_spec import CrossAttentionSpec
from penstock.model.media_facts import MediaFacts
from penstock.model.transcription_facts import Alignment
from penstock.protocol.common import Pooling, Stopping, TokenSampling, Vectors
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.from_worker import Result, SlotResult
from penstock_engine.handlers.pooling import check_pooling, verify_alignments
from penstock_engine.request.request import Request
from penstock_engine.request.step_in_flight import UnfitResult
from tests.engine import small_facts
from tests.engine.fake_media import picture, shown
from tests.engine.harness import Harness
from tests.shared.transcription.test_segments import FACTS

ROWS = 5
GOOD = Submit(
    1,
    "a",
    [9] * ROWS + [3, 4, 5, 6],
    [OpenSequence(0)],
    TokenSampling(0),
    Stopping(max_tokens=1, ignore_eos=True),
    media=shown((picture(1, ROWS), 0)),
    pooling=Pooling("align", rows=ROWS, skipped=2),
)


def check(submit: Submit, rows: int = ROWS) -> None:
    check_pooling(submit, None, (), 100, rows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"media": None}, "need audio"),
        ({"pooling": Pooling("align", rows=0, skipped=2)}, "rows of an alignment"),
        ({"pooling": Pooling("align", rows=ROWS + 1, skipped=2)}, "rows of an alignment"),
        ({"pooling": Pooling("align", rows=ROWS)}, "skipped tokens"),
        ({"pooling": Pooling("align", rows=ROWS, skipped=4)}, "skipped tokens"),
        ({"prompt_token_ids": [9] * ROWS + [3]}, "at least one token"),
        ({"stopping": Stopping(max_tokens=2)}, "one sequence"),
        ({"sequences": [OpenSequence(0, [1])]}, "one sequence"),
        ({"sampling": TokenSampling(0, prompt_logprobs=1)}, "can't have log-probabilities"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    check(GOOD)
    if "one token" in words:
        changes = {**changes, "pooling": Pooling("align", rows=ROWS, skipped=1)}
    with pytest.raises(InvalidRequest, match=words):
        check(msgspec.structs.replace(GOOD, **changes))


def test_other_models_refuse_it() -> None:
    with pytest.raises(InvalidRequest, match="word times are not available"):
        check(GOOD, rows=0)


def test_front_ends_are_told_whether_words_have_times() -> None:
    """The settings say it at once; the worker says it when it is ready."""
    facts = small_facts.facts()
    heard = replace(FACTS, alignment=Alignment(heads=((0, 0),)))
    media = MediaFacts(kinds={}, transcription=heard)
    config = replace(facts.model.config, cross_attention=CrossAttentionSpec(rows=ROWS))
    hears = replace(facts, model=replace(facts.model, media=media, config=config))
    parallel = replace(facts.config.parallel, tensor_parallel_size=2)
    ranks = replace(hears, config=replace(facts.config, parallel=parallel))
    told = [each.welcome(1, 64).aligns for each in (hears, ranks, facts)]
    assert told == [True, False, False]


@pytest.mark.parametrize("aligns", [True, False])
def test_a_worker_without_them_is_told_of(aligns: bool) -> None:
    h = Harness()
    h.aligns = aligns
    front = h.connect()
    assert front.status is not None
    assert front.status.aligns
    h.start_worker(ready=False)
    h.worker_ready(50)
    assert front.status.ready
    assert front.status.aligns == aligns


def test_all_of_its_prompt_is_computed() -> None:
    """Whatever the cache holds."""
    request = Request(b"", GOOD, arrival=1, eos_token_ids=())
    assert request.sequences[0].first_wanted == 0
    plain = Request(b"", msgspec.structs.replace(GOOD, pooling=None), arrival=1, eos_token_ids=())
    assert plain.sequences[0].first_wanted == len(GOOD.prompt_token_ids) - 1


def test_an_answer_has_a_number_for_each_token() -> None:
    asks = SimpleNamespace(pooling=GOOD.pooling, prompt_token_ids=GOOD.prompt_token_ids)
    writes = SimpleNamespace(pooling=None, prompt_token_ids=[1])

    def verify(*outcomes: SlotResult) -> None:
        items = [(SimpleNamespace(request=each), 0, 0) for each in (asks, writes)]
        step: Any = SimpleNamespace(items=items)
        verify_alignments(step, Result(1, list(outcomes)), ROWS)

    two = Vectors((2,), bytes(8))
    verify(SlotResult(0, 0, vectors=two), SlotResult(1, 7))
    verify(SlotResult(0), SlotResult(1))
    for wrong in (None, Vectors((3,), bytes(12)), Vectors((2,), bytes(4))):
        with pytest.raises(UnfitResult):
            verify(SlotResult(0, 0, vectors=wrong), SlotResult(1, 7))
    with pytest.raises(UnfitResult):
        verify(SlotResult(0), SlotResult(1, 7, vectors=two))
