"""What the runners share. Standard library only: each runs in another library's environment.

A runner is started with a model's path and a number of threads.  It writes one line when it has
loaded, and answers each line with one: `{"prompts": [[ids]], "output_tokens": n}` with
`{"seconds": …, "output_tokens": [counts], "decode_s": … or null}`.  What the library itself prints
goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol


class Engine(Protocol):
    """A loaded model."""

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        """Greedy, never ended by an end token. Times nothing but the library's own call."""


def serve(load: Callable[[str, int], Engine]) -> int:
    """Until the end of the input. Exit status: 0; 1 where the model can't be loaded."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        engine = load(sys.argv[1], int(sys.argv[2]))
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"can't load: {type(error).__name__}: {error}"})
        return 1
    answer({})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer(engine.run(asked["prompts"], asked["output_tokens"]))
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})
    return 0
