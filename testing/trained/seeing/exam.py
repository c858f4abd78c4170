"""Questions about pictures that the model has never seen, with their answers."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

from testing.trained.seeing.pictures import EVERY, NEVER_SHOWN, Things, draw
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


def whole(count: int) -> list[Task]:
    """What is in it? Of pictures of all kinds in turn, those that were left out in training too,
    in sizes that training has and larger ones."""
    choose = random.Random(count)
    tasks = []
    for seed in range(count):
        things = EVERY[seed % len(EVERY)]
        size = choose.randint(60, 500), choose.randint(60, 500)
        question = WHOLE[seed % len(WHOLE)]
        tasks.append(Task(things, file_of(things, seed, *size), question, things.words))
    return tasks


def parts(count: int) -> list[Task]:
    """How many, which colour, which shape? Each asked first, so that no answer helps another."""
    tasks = []
    for seed in range(count):
        things = EVERY[seed * 7 % len(EVERY)]
        questions, answer = ASKED[1 + seed % 3]
        question = questions[seed % len(questions)]
        tasks.append(Task(things, file_of(things, 5000 + seed, 120, 90), question, answer(things)))
    return tasks


def left_out(tasks: list[Task]) -> list[Task]:
    """Those about combinations that training never showed."""
    return [task for task in tasks if task.things in NEVER_SHOWN]


def right(tasks: list[Task], said: list[str]) -> int:
    """How many of the answers are right, to the letter."""
    return sum(task.answer == words for task, words in zip(tasks, said, strict=True))
