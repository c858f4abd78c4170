"""Prompts of real text, as drafts and caches see it: code, prose and chat, of a wanted number of
tokens."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.report import ROOT
from penstock.formats.gguf import GGUFFile
from penstock.prepare.gguf_tokenizer import build_tokenizer
from penstock.text.tokenizer import Tokenizer

KINDS = ("code", "prose", "chat")
QUESTIONS = (
    "What is this about? Answer in a few sentences.",
    "Summarise the following as a list of points.",
    "I don't understand this. Could you explain it to a beginner?",
    "Which of these would you do first, and why?",
    "Rewrite this so that it is shorter.",
    "What could go wrong here?",
)
FOLLOW_UPS = (
    "Thank you. Could you give an example of that, and say step by step what happens in it?",
    "Now say the same in one sentence, for somebody who is in a hurry.",
    "Which words above might a newcomer not know? List each with what it means.",
    "Please write a short Python function that goes with it, with a docstring.",
    "Rewrite that function so that it refuses bad input with a clear message.",
)
"""What a chat's five turns ask."""
_CHARACTERS = 12
"""Characters that are read for each wanted token: more than a token of plain text has."""


class Texts:
    """Texts in a model's tokens.  encode: a text's tokens; special ones are read where it is asked
    for."""

    def __init__(self, encode: Callable[[str, bool], list[int]]) -> None:
        self._encode = encode
        self._files = {"code": _code(), "prose": _prose()}
        self._files["chat"] = self._files["prose"]

    @classmethod
    def of(cls, model: Path) -> Texts:
        """Makes texts in the tokens of a GGUF file's model."""
        built = build_tokenizer(GGUFFile(model))
        tokenizer = Tokenizer(built.json, add_bos=built.add_bos, bos_token_id=built.bos_id)

        def encode(text: str, special: bool) -> list[int]:
            return tokenizer.encode(text, parse_special=special, add_special=False)

        return cls(encode)

    def prompt(self, kind: str, tokens: int, rng: random.Random) -> list[int]:
        """Exactly so many tokens of one of KINDS: from the beginning of some line on, or a
        question about such a text in the form of a chat."""
        if kind != "chat":
            return self._text(kind, tokens, rng)
        head = self._encode(f"<|im_start|>user\n{rng.choice(QUESTIONS)}\n\n", True)
        tail = self._encode(_ANSWER, True)
        body = self._text(kind, max(tokens - len(head) - len(tail), 0), rng)
        return [*head, *body, *tail][-tokens:]

    def follow_up(self, turn: int) -> list[int]:
        """What is asked next in a chat, behind an answer."""
        asked = FOLLOW_UPS[turn % len(FOLLOW_UPS)]
        return self._encode(f"<|im_end|>\n<|im_start|>user\n{asked}{_ANSWER}", True)

    def _text(self, kind: str, tokens: int, rng: random.Random) -> list[int]:
        files = self._files[kind]
        number = rng.randrange(len(files))
        lines = files[number].splitlines(keepends=True)
        text = "".join(lines[rng.randrange(max(len(lines) // 2, 1)) :])
        while len(text) < _CHARACTERS * tokens:
            number = (number + 1) % len(files)
            text += files[number]
        return self._encode(text[: _CHARACTERS * tokens], False)[:tokens]


_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"


def _code() -> Sequence[str]:
    """Modules of Python's standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    return _read(sorted([*folder.glob("*.py"), *folder.glob("asyncio/*.py")]))


def _prose() -> Sequence[str]:
    """Texts of this project's documentation."""
    guides = [*(ROOT / "docs").glob("*/*.md"), *ROOT.glob("*.md")]
    return _read(sorted(guides))


def _read(paths: Sequence[Path]) -> list[str]:
    """Returns the files' texts that are long enough."""
    texts = (path.read_text("utf-8", "replace") for path in paths)
    return [text for text in texts if len(text) > 4000]
