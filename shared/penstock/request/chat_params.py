"""What a person's chat adds to its requests where nothing is set: the page and `penstock chat`. The
API's defaults stay the model's own."""

from __future__ import annotations

from typing import Any

LOOP = {"max_pattern_size": 128, "min_pattern_size": 8, "min_count": 6}
"""repetition_detection: as many as 16 zeros of a matrix, or five equal rows, are no loop yet."""

DEMONSTRATION = "smollm2-135m"
SMALL = {"repetition_penalty": 1.1, "max_tokens": 1024}
"""Of the demonstration model. loadtest.first_answers chose the penalty: without it, it ends one
answer of five in a loop, and with 1.15 it doesn't find the end of its sentences."""


def chat_params(model: str) -> dict[str, Any]:
    """Fields of a chat request, by the name of the model."""
    return {"repetition_detection": LOOP, **(SMALL if model == DEMONSTRATION else {})}
