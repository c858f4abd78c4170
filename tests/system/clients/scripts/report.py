"""What a client's script prints for the tests: one JSON object, a part for each feature."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

CAPITAL = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TEXTS = ["A penstock is a gated pipe.", "Water falls.", "Übergrößenträger 👋"]
MAX_TOKENS = 16


def run(features: dict[str, Callable[[], Any]]) -> None:
    """Runs those named on the command line after the addresses; prints {name: {"got"} or
    {"error"}}."""
    wanted = sys.argv[4:] or list(features)
    told: dict[str, Any] = {}
    for name in wanted:
        try:
            told[name] = {"got": features[name]()}
        except Exception:
            told[name] = {"error": traceback.format_exc()[-4000:]}
    print("\n" + json.dumps(told))


def arguments() -> tuple[str, str, str]:
    """URL (without /v1), model, and URL of a server with an embedding model (empty: none)."""
    return sys.argv[1], sys.argv[2], sys.argv[3]
