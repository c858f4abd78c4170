"""The conversation of `penstock chat`, and how it is written to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.cli.media_files import content_with, words_of


class ChatHistory:
    """system: the system message, empty for none.  turns: user and assistant messages so far.
    media: parts that the next question brings."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.turns: list[dict[str, Any]] = []
        self.media: list[dict[str, Any]] = []

    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation in the form that the API takes."""
        head: list[dict[str, Any]] = (
            [{"role": "system", "content": self.system}] if self.system else []
        )
        return [*head, *self.turns]

    def ask(self, text: str) -> None:
        self.turns.append({"role": "user", "content": content_with(self.media, text)})
        self.media = []

    def answered(self, text: str) -> None:
        """Keeps an answer, or what there was of it; without one the question is taken back, since
        templates want turns to alternate."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def clear(self) -> None:
        """Forgets the turns, and keeps the system message."""
        self.turns.clear()
        self.media = []

    def save(self, file: str) -> Path:
        """Writes it: JSON where the name ends so, else Markdown. Raises OSError."""
        path = Path(file).expanduser()
        text = self.as_json() if path.suffix == ".json" else self.as_markdown()
        path.write_text(text, encoding="utf-8")
        return path

    def as_json(self) -> str:
        return json.dumps({"messages": self.messages()}, ensure_ascii=False, indent=1) + "\n"

    def as_markdown(self) -> str:
        parts = [
            f"## {one['role']}\n\n{words_of(one['content']).strip()}\n" for one in self.messages()
        ]
        return "\n".join(parts)
