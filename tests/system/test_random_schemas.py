"""Random schemas at temperature 1, from the library down to the real model."""

from __future__ import annotations

import json
import os

import jsonschema
import pytest

from penstock import LLM, SamplingParams, StructuredOutputs
from testing import random_schemas
from tests.thinning import part

pytestmark = [pytest.mark.timeout(900)]
SCHEMAS = int(os.environ.get("PENSTOCK_SCHEMAS", part(10, 1 / 2)))
"""200 where there is time."""


def test_every_completed_answer_is_valid() -> None:
    schemas = [random_schemas.schema(seed) for seed in range(SCHEMAS)]
    prompts = [f"A JSON value for {json.dumps(schema)}: " for schema in schemas]
    params = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=300,
            structured_outputs=StructuredOutputs(json=schema),
        )
        for seed, schema in enumerate(schemas)
    ]
    with LLM(max_model_len=2048, grammar_compile_timeout=120) as llm:
        outputs = llm.generate(prompts, params)
    completed = 0
    for schema, output in zip(schemas, outputs, strict=True):
        [answer] = output.outputs
        assert answer.finish_reason in ("stop", "length"), answer
        if answer.finish_reason == "stop":
            completed += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer.text))
    assert completed >= 0.9 * SCHEMAS, completed
