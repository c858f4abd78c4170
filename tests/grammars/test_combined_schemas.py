"""Schemas that combine what llguidance doesn't know, against the jsonschema package: whatever the
mask lets through is valid, and what is valid gets through."""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock_grammars.schemas.keywords import NARROWED
from penstock_grammars.schemas.rewriter import rewritten
from penstock_worker.grammar.errors import GrammarError
from tests.grammars.byte_matcher import Served
from tests.grammars.combined_schemas import (
    array_schemas,
    arrays,
    documents,
    schemas,
)
from tests.thinning import part

EXAMPLES = int(os.environ.get("PENSTOCK_SCHEMAS", part(60, 1 / 3)))
"""More where there is time."""
PHASES = (Phase.explicit, Phase.generate)
"""A schema that fails is short enough to be read, and finding a shorter one takes minutes."""
seen: Counter[str] = Counter()


def check(schema: dict[str, Any], several: list[Any], seed: int) -> None:
    judge = jsonschema.Draft202012Validator(schema)
    served, refusal = _serve(schema)
    if served is None:
        seen["impossible" if _impossible(refusal) else "refused"] += 1
        assert not (_impossible(refusal) and any(map(judge.is_valid, several))), refusal
        return
    seen["served"] += 1
    for document in several:
        admitted = served.admits(document)
        if judge.is_valid(document):
            seen["valid"] += 1
            assert admitted or _in_part(schema), document
        else:
            seen["invalid"] += 1
            assert not admitted, document
    for at in range(3):
        text = served.walk(random.Random(seed + at))
        if text is not None:
            seen["walked"] += 1
            judge.validate(json.loads(text))


def _in_part(schema: dict[str, Any]) -> bool:
    """Whether only some of the valid documents are admitted: where an opposite can't be said, or
    not in full."""
    try:
        return NARROWED in json.dumps(rewritten(schema, lambda each: False))
    except GrammarError:
        return True


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(
    schema=schemas(), several=st.lists(documents(), min_size=6, max_size=10), seed=st.integers(0)
)
def check_objects(schema: dict[str, Any], several: list[Any], seed: int) -> None:
    check(schema, several, seed)


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(
    schema=array_schemas(), several=st.lists(arrays(), min_size=6, max_size=10), seed=st.integers(0)
)
def check_arrays(schema: dict[str, Any], several: list[Any], seed: int) -> None:
    check(schema, several, seed)


def _serve(schema: dict[str, Any]) -> tuple[Served | None, str]:
    try:
        return Served(schema), ""
    except GrammarError as error:
        return None, str(error)


def _impossible(complaint: str) -> bool:
    return complaint.startswith(("no output can match", "Unsatisfiable"))


@pytest.mark.parametrize(("check_all", "least"), [(check_objects, 0.5), (check_arrays, 0.4)])
def test_the_mask_and_the_judge_agree(check_all: Callable[[], None], least: float) -> None:
    seen.clear()
    check_all()
    asked = seen["served"] + seen["refused"]
    # Of few schemas, the share may be off by a standard deviation.
    assert seen["served"] > least * asked - math.sqrt(asked) / 2, seen
    assert min(seen["valid"], seen["invalid"], seen["walked"]) > EXAMPLES / 3, seen
