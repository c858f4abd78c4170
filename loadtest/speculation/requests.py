"""Requests of which more or less can be foretold. Each is made of a seed, and is a new one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

WORDS = (
    *("river", "stone", "garden", "window", "market", "letter", "silver", "engine", "orchard"),
    *("harbour", "meadow", "lantern", "village", "bridge", "winter", "copper", "basket"),
    *("ladder", "mirror", "saddle", "thunder", "velvet", "walnut", "anchor", "barrel"),
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "category": {"enum": ["household", "garden", "workshop", "kitchen"]},
        "price_in_euros": {"type": "integer"},
        "available_in_stores": {"type": "boolean"},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "category", "price_in_euros", "available_in_stores", "colours"],
    "additionalProperties": False,
}
Body = dict[str, Any]


def sentences(draws: random.Random, count: int) -> str:
    """Lines that nobody has read before."""
    return "".join(
        f"{at + 1}. The {draws.choice(WORDS)} of the {draws.choice(WORDS)} near the"
        f" {draws.choice(WORDS)} costs {draws.randrange(1000)} euros.\n"
        for at in range(count)
    )


def _asked(words: str, *, whole: bool = True) -> Body:
    """`whole`: whether the answer is as long as it may be."""
    return {"messages": [{"role": "user", "content": words}], "ignore_eos": whole}


def _place(draws: random.Random) -> str:
    """There are so many that hardly any is drawn twice: what was said of the same one before would
    be what the drafts are."""
    one, other, third = draws.sample(WORDS, 3)
    return f"the {one} of the {other}, {draws.randrange(1, 1000)} {third} street"


def copy(draws: random.Random) -> Body:
    return _asked(f"Repeat this list word for word, and nothing else:\n{sentences(draws, 9)}")


def edit(draws: random.Random) -> Body:
    """The text is also what the output is predicted to be."""
    text = sentences(draws, 9)
    words = f"Write this list again with dollars instead of euros, and nothing else:\n{text}"
    return {**_asked(words), "prediction": {"type": "content", "content": text}}


def code(draws: random.Random) -> Body:
    names = ", ".join(draws.sample(WORDS, 6))
    return _asked(
        "Write a Python class with a field, a getter, a setter and a test for each of these names:"
        f" {names}."
    )


def rename(draws: random.Random) -> Body:
    """Code to be edited, of which the answer is a copy but for a name."""
    one, other, third = draws.sample(WORDS, 3)
    source = (
        f"class {one.title()}Store:\n    def __init__(self, path):\n        self.path = path\n"
        f"        self.{other} = {{}}\n\n    def load_{other}(self):\n"
        f"        with open(self.path) as file:\n            for line in file:\n"
        f"                name, value = line.split('=')\n"
        f"                self.{other}[name] = value\n\n"
        f"    def total_{other}(self):\n        return sum(int(v) for v in self.{other}.values())\n"
    )
    return _asked(
        f"Rename `{other}` to `{third}` in this code, and answer with all of it:\n{source}"
    )


def turns(draws: random.Random) -> Body:
    """A chat whose answers have had one form so far."""
    said: list[dict[str, str]] = []
    for at, name in enumerate(draws.sample(WORDS, 4)):
        said.append({"role": "user", "content": f"Tell me about the {name} at {_place(draws)}."})
        if at < 3:
            answer = (
                f"The {name} is one of the oldest in the village. It was built by the people of"
                f" the {draws.choice(WORDS)}, who used it for {draws.randrange(20, 300)} years."
                f" Today it is open to visitors from nine to five, and a ticket costs"
                f" {draws.randrange(2, 30)} euros. Would you like to know more about the {name}?"
            )
            said.append({"role": "assistant", "content": answer})
    return {"messages": said, "ignore_eos": True}


def as_json(draws: random.Random) -> Body:
    schema = {"type": "array", "items": SCHEMA, "minItems": 6}
    return {
        **_asked(f"List six things to sell at {_place(draws)}, as JSON.", whole=False),
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "things", "schema": schema},
        },
    }


def chat(draws: random.Random) -> Body:
    words = f"Tell a story about a {draws.choice(WORDS)} at {_place(draws)}."
    return {**_asked(words), "temperature": 0.8, "seed": draws.randrange(2**31)}


def noise(draws: random.Random) -> Body:
    """Words without sense, and an output that is as good as random."""
    words = " ".join(draws.choice(WORDS) for _ in range(60))
    return {**_asked(words), "temperature": 1.5}


WORKLOADS: dict[str, Callable[[random.Random], Body]] = {
    "copy": copy,
    "edit": edit,
    "code": code,
    "rename": rename,
    "turns": turns,
    "JSON": as_json,
    "chat": chat,
    "random": noise,
}
