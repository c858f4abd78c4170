"""What counts as right, by a simple rule, the same for everybody; and the page of answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.report import Document, machine_line, markdown_table

LLAMACPP = "llama.cpp"
SHOWN = 120
"""Characters of an answer in the table."""

Answers = Mapping[str, list[list[str]]]
"""Entrance -> for each question its answers."""


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


def rights(asked: list[Question], answers: list[list[str]]) -> list[int]:
    """How many of each question's answers are right."""
    return [
        sum(question.is_right(each) for each in given)
        for question, given in zip(asked, answers, strict=True)
    ]


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share (E. B. Wilson, 1927)."""
    z = 1.96
    share, spread = right / count, z * z / count
    middle = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def to_markdown(document: Document, asked: list[Question]) -> str:
    """Who was right how often; the prompts; each question with an answer of each."""
    answers: Answers = document["answers"]
    own = {name: given for name, given in answers.items() if name != LLAMACPP}
    joined = [[each for given in own.values() for each in given[at]] for at in range(len(asked))]
    rows = [*own.items(), ("**Penstock, all of them**", joined)]
    rows.append((f"**{LLAMACPP}**", answers[LLAMACPP]))
    rates = markdown_table(
        ["asked through", "right", "share", "95 %"], [_rate(asked, *row) for row in rows]
    )
    both = (rights(asked, joined), rights(asked, answers[LLAMACPP]))
    each = markdown_table(
        ["question", "expected", "Penstock", LLAMACPP],
        [
            [
                question.question,
                ", ".join(question.expected).replace("|", " or "),
                f"{both[0][at]} of {len(joined[at])}",
                f"{both[1][at]} of {len(answers[LLAMACPP][at])}",
            ]
            for at, question in enumerate(asked)
        ],
    )
    return "\n".join(
        [
            f"{machine_line(document)}; {document['model']}; {document['versions']}.",
            "",
            "Penstock is asked with its defaults, the seed drawn for each request; llama.cpp with "
            "temperature 0.2 and top_p 0.9, as the model's card advises, and the seeds "
            f"{document['seeds']}. An answer is right where all expected words are in its first "
            f"{document['max_tokens']} tokens.",
            "",
            rates,
            f"Prompts as token ids, of {len(asked)}: {document['prompts']}.",
            "",
            each,
            *_example(document["example"]),
            *_side_by_side(asked, answers),
        ]
    )


def _rate(asked: list[Question], name: str, given: list[list[str]]) -> list[str]:
    right, count = sum(rights(asked, given)), sum(map(len, given))
    low, high = interval(right, count)
    return [name, f"{right} of {count}", f"{right / count:.0%}", f"{low:.0%} to {high:.0%}"]


def _example(example: list[Mapping[str, Any]]) -> list[str]:
    """The README's, over many seeds."""
    rows = [
        [
            row["question"],
            f"{row['penstock']} of {row['seeds']}",
            f"{row[LLAMACPP]} of {row['seeds']}",
        ]
        for row in example
    ]
    return [
        "",
        "The question of README's example, as its code asks it, and the one it had before; "
        f"seeds 0 to {example[0]['seeds'] - 1}:",
        "",
        markdown_table(["question", "Penstock", LLAMACPP], rows),
    ]


def _side_by_side(asked: list[Question], answers: Answers) -> list[str]:
    lines = []
    for at, question in enumerate(asked):
        lines += ["", f"**{question.question}**", ""]
        for name, given in answers.items():
            answer = given[at][0]
            mark = "right" if question.is_right(answer) else "wrong"
            lines.append(f"- {name} ({mark}): {_short(answer)}")
    return [*lines, ""]


def _short(answer: str) -> str:
    line = " ".join(answer.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= SHOWN else line[:SHOWN] + " …"
