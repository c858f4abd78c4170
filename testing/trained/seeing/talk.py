"""What people ask of pictures, and the right answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from testing.trained.seeing.pictures import NUMBERS, Things

WHOLE = (
    "What is in the picture?",
    "What is in this picture?",
    "What's in the picture?",
    "What is in the image?",
    "What's in this image?",
    "What do you see?",
    "What can you see?",
    "What is this?",
    "What does the picture show?",
    "What is shown here?",
    "Describe the picture.",
    "Describe this image.",
)
NUMBER = (
    "How many are there?",
    "How many things are there?",
    "How many do you see?",
    "How many things are in the picture?",
)
COLOUR = (
    "Which colour is it?",
    "What colour is it?",
    "What colour are they?",
    "Which color is it?",
    "What color are they?",
    "Which colour?",
)
SHAPE = (
    "Which shape is it?",
    "What shape is it?",
    "Which shape are they?",
    "What shape do they have?",
    "Which shape?",
)
BOTH = ("What is in the pictures?", "What do you see?", "Describe the pictures.")
BLIND = "I see no picture."


@dataclass(frozen=True)
class Turn:
    """shown: the pictures of the message.  first: whether they stand before its words."""

    shown: tuple[Things, ...]
    question: str
    answer: str
    first: bool = True


def whole(things: Things) -> str:
    return things.words


def number(things: Things) -> str:
    return f"{NUMBERS[things.count - 1].capitalize()}."


def colour(things: Things) -> str:
    return f"{things.colour.capitalize()}."


def shape(things: Things) -> str:
    return f"{things.noun.capitalize()}."


ASKED = ((WHOLE, whole), (NUMBER, number), (COLOUR, colour), (SHAPE, shape))


def about_one(choose: random.Random, things: Sequence[Things]) -> list[Turn]:
    """Questions about one picture; now and then one of somebody who has shown none."""
    asked = choose.sample(ASKED, choose.randint(2, 4))
    if choose.random() < 0.05:
        return [Turn((), _asked(choose, asked[0][0]), BLIND)]
    seen = choose.choice(things)
    return [
        Turn((seen,) * (not place), _asked(choose, texts), answer(seen), choose.random() < 0.7)
        for place, (texts, answer) in enumerate(asked)
    ]


def about_two(choose: random.Random, things: Sequence[Things]) -> list[Turn]:
    """Turns about two pictures at once, or about one after the other: then the last one is
    meant."""
    both = choose.choice(things), choose.choice(things)
    if choose.random() < 0.5:
        words = " ".join(each.words for each in both)
        return [Turn(both, _asked(choose, BOTH), words, choose.random() < 0.7)]
    turns: list[Turn] = []
    for seen in both:
        asked = choose.sample(ASKED, 2)
        turns += [
            Turn((seen,) * (not place), _asked(choose, texts), answer(seen), choose.random() < 0.7)
            for place, (texts, answer) in enumerate(asked)
        ]
    return turns


def _asked(choose: random.Random, questions: Sequence[str]) -> str:
    """One of them as people type: sometimes in small letters, sometimes without the last mark."""
    question = choose.choice(questions)
    if choose.random() < 0.3:
        question = question[0].lower() + question[1:]
    return question[:-1] if choose.random() < 0.2 else question
