"""What a person's chat adds to its requests where nothing is set: the page and `penstock chat`. The
API's defaults stay the model's own."""

from __future__ import annotations

from typing import Any

LOOP = {"max_pattern_size": 128, "min_pattern_size": 8, "min_count": 6}
"""repetition_detection: as many as 16 zeros of a matrix, or five equal rows, are no loop yet."""

DEMONSTRATION = ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m")
"""The demonstration model's name on the hub, and its alias."""
SMALL = {
    "system": "You are a helpful AI assistant. Give short, correct answers.",
    "repetition_penalty": 1.1,
    "max_tokens": 1024,
}
"""Parameters for small models, chosen by how many first answers are sane: without them, one answer
of five is a loop; with a penalty of 1.15, it doesn't find the end of its sentences."""


def chat_params(model: str) -> dict[str, Any]:
    """Fields of a chat request, by the model's name on the hub, or its own where it has none there;
    `system` is the system prompt."""
    return {"repetition_detection": LOOP, **(SMALL if model in DEMONSTRATION else {})}
