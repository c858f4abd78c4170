"""200 random schemas, and tokens drawn evenly from whatever the grammar allows: no model is as
wild. What is complete parses, and another implementation of JSON schema finds it valid."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import Grammar
from penstock.text.tokenizer import Tokenizer
from penstock_grammars.compiler import Compiler
from testing import random_schemas

pytestmark = pytest.mark.timeout(240)
SCHEMAS = 200
MOST = 600


def test_outputs_are_valid(
    default_folder: Path, default_model: PreparedModel, default_tokenizer: Tokenizer
) -> None:
    eos = default_model.generation.eos_token_ids
    vocabulary = default_model.config.vocab_size
    compiler = Compiler(default_folder / "tokenizer.json", vocabulary, eos)
    ended = 0
    for seed in range(SCHEMAS):
        schema = random_schemas.schema(seed)
        matcher = compiler(Grammar("json_schema", json.dumps(schema))).matcher()
        draw = np.random.default_rng(seed)
        tokens: list[int] = []
        while len(tokens) < MOST:
            token = int(draw.choice(np.flatnonzero(matcher.allowed())))
            if token in eos:
                break
            tokens.append(token)
            matcher.advance([token])
        else:
            continue
        ended += 1
        text = default_tokenizer.decode(tokens, skip_special_tokens=False)
        jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.FormatChecker(formats=("date", "uuid", "ipv4"))
        ).validate(json.loads(text))
    compiler.close()
    assert ended >= 0.95 * SCHEMAS, ended
