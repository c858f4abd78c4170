"""Questions about pictures that the model has never seen, with their answers."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass

from testing.trained.seeing.pictures import SHOWN, Things, draw
from testing.trained.seeing.talk import ASKED, WHOLE

UNSEEN = 1_000_000
"""Seeds from here on: training draws with smaller ones."""
LONGEST = 12
"""Tokens of an answer, at most."""


@dataclass(frozen=True)
class Task:
    """picture: a file's bytes, PNG or JPEG."""

    things: Things
    picture: bytes
    question: str
    answer: str

    @property
    def media_type(self) -> str:
        return "image/png" if self.picture.startswith(b"\x89PNG") else "image/jpeg"


def file_of(things: Things, seed: int, width: int, height: int) -> bytes:
    """A picture's file: every third seed a JPEG."""
    saved = io.BytesIO()
    picture = draw(things, UNSEEN + seed, width, height)
    if seed % 3:
        picture.save(saved, "PNG")
    else:
        picture.save(saved, "JPEG", quality=80)
    return saved.getvalue()


def whole(count: int, kinds: Sequence[Things] = SHOWN) -> list[Task]:
    """What is in it? Of pictures of these kinds in turn, in sizes that training has and larger
    ones. NEVER_SHOWN are the combinations that training left out."""
    choose = random.Random(count)
    tasks = []
    for seed in range(count):
        things = kinds[seed % len(kinds)]
        size = choose.randint(60, 500), choose.randint(60, 500)
        question = WHOLE[seed % len(WHOLE)]
        tasks.append(Task(things, file_of(things, seed, *size), question, things.words))
    return tasks


def parts(count: int) -> list[Task]:
    """How many, which colour, which shape? Each asked first, so that no answer helps another."""
    tasks = []
    for seed in range(count):
        things = SHOWN[seed * 7 % len(SHOWN)]
        questions, answer = ASKED[1 + seed % 3]
        question = questions[seed % len(questions)]
        tasks.append(Task(things, file_of(things, 5000 + seed, 120, 90), question, answer(things)))
    return tasks


def right(tasks: list[Task], said: list[str]) -> int:
    """How many of the answers are right, to the letter."""
    return sum(task.answer == words for task, words in zip(tasks, said, strict=True))
