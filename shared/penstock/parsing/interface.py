"""What a parser is, and how a plug-in brings one.

A plug-in's class is named by an entry point, whose name is what `--tool-call-parser` or
`--reasoning-parser` takes:

    [project.entry-points."penstock.tool_parsers"]
    my_model = "my_package:MyParser"
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from penstock.parsing.events import Event


class OutputParser(ABC):
    """Reads one answer.

    Contract: the events of `push` and `finish` together, neighbours of a kind joined, depend on the
    whole text only, not on its pieces.  Text is held back only while it can still become something
    else, and never without a bound.  No text of the model's raises.
    """

    @abstractmethod
    def push(self, text: str) -> list[Event]:
        """Takes the next piece; gives what is certain by now."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """The text has ended, whole or cut short: gives the rest."""

    @property
    def held(self) -> int:
        """Characters at the end of the text so far that no event has reported, but one still may.
        It says which tokens are whose: a parser that holds text back should know."""
        return 0


class ToolParser(OutputParser):
    """Finds calls in an answer's content. Gives no Reasoning.

    tools: names of the functions that the request offers.
    """

    needs_special_tokens: ClassVar[bool] = False
    """Whether the format's marks are special tokens, which else are left out of the text."""

    def __init__(self, tools: Collection[str]) -> None:
        self.tools = frozenset(tools)

    @staticmethod
    def new_id() -> str:
        """The id of a call. Nobody can guess it, so nobody can answer another's call."""
        return f"call_{secrets.token_hex(12)}"


class ReasoningParser(OutputParser):
    """Parts thinking from content. Gives no calls.

    prompt: the filled chat template, or its end: it may open or close a block of thinking itself.
    """

    closing_tag: ClassVar[str | None] = None
    """What ends the thinking, for the count of its tokens; None: they are not counted."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
