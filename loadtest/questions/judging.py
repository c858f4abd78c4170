"""What counts as right: a simple rule, the same for everybody."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """expected: what must all be in the answer; `a|b` is one of them."""

    question: str
    expected: list[str]

    def is_right(self, answer: str) -> bool:
        """Whether every expected word stands there as a whole word, in any case."""
        return all(_has(answer, each) for each in self.expected)


def questions() -> list[Question]:
    """The twenty."""
    text = Path(__file__).with_name("questions.json").read_text(encoding="utf-8")
    return [Question(**each) for each in json.loads(text)]


def _has(answer: str, words: str) -> bool:
    return any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer, re.I) for word in words.split("|")
    )
