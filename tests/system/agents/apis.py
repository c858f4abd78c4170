"""An agent's conversation through each API: what it sends, and how it sends back what it got."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

Json = dict[str, Any]
PARAMETERS: Json = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "Relative to the repository"}},
    "required": ["path"],
}
NAMES = ("read_file", "list_folder", "run_tests")
ABOUT = "Tells what is found at a path"
MOST = 4096
"""Tokens of an answer."""


class Found(NamedTuple):
    """Tokens of a request's prompt, and how many of them the server says it had."""

    prompt: int
    cached: int


class Conversation(ABC):
    """A growing history. Each request sends all of it.

    model, system, asked: the model's name, the system prompt, and the user's first message.
    """

    name: ClassVar[str]
    path: ClassVar[str]

    def __init__(self, model: str, system: str, asked: str) -> None:
        self._model, self._system = model, system
        self._history: list[Json] = []
        self.ask(asked)

    def ask(self, text: str) -> None:
        """The user says something."""
        self._history.append({"role": "user", "content": text})

    @abstractmethod
    def body(self, seed: int) -> Json:
        """The next request."""

    @abstractmethod
    def take(self, reply: Json) -> tuple[list[str], Found]:
        """Adds an answer to the history. Returns its calls' ids, and what its usage says."""

    @abstractmethod
    def tell(self, results: dict[str, str]) -> None:
        """Adds what each call, by its id, has given."""


class Chat(Conversation):
    """OpenAI's chat completions; the assistant's message is sent back as it came."""

    name, path = "chat", "/v1/chat/completions"

    def body(self, seed: int) -> Json:
        system = {"role": "system", "content": self._system}
        functions = [{"name": n, "description": ABOUT, "parameters": PARAMETERS} for n in NAMES]
        return {
            "model": self._model,
            "messages": [system, *self._history],
            "tools": [{"type": "function", "function": each} for each in functions],
            "seed": seed,
            "max_completion_tokens": MOST,
        }

    def take(self, reply: Json) -> tuple[list[str], Found]:
        message, usage = reply["choices"][0]["message"], reply["usage"]
        self._history.append(self._kept(message))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        calls = message.get("tool_calls") or ()
        return [call["id"] for call in calls], Found(usage["prompt_tokens"], cached)

    def _kept(self, message: Json) -> Json:
        return message

    def tell(self, results: dict[str, str]) -> None:
        for id, text in results.items():
            self._history.append({"role": "tool", "tool_call_id": id, "content": text})


class ChatWithoutThoughts(Chat):
    """Chat by a client that knows OpenAI's own fields alone, and sends no thoughts back."""

    name = "chat, thoughts not sent back"

    def _kept(self, message: Json) -> Json:
        known = ("role", "content", "tool_calls", "refusal")
        return {key: message[key] for key in known if key in message}


class Responses(Conversation):
    """OpenAI's responses, stateless; all items are sent back as they came."""

    name, path = "responses", "/v1/responses"

    def body(self, seed: int) -> Json:
        function = {"type": "function", "description": ABOUT, "parameters": PARAMETERS}
        return {
            "model": self._model,
            "instructions": self._system,
            "input": self._history,
            "tools": [{**function, "name": name} for name in NAMES],
            "store": False,
            "seed": seed,
            "max_output_tokens": MOST,
        }

    def take(self, reply: Json) -> tuple[list[str], Found]:
        usage = reply["usage"]
        self._history += reply["output"]
        calls = [item["call_id"] for item in reply["output"] if item["type"] == "function_call"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return calls, Found(usage["input_tokens"], cached)

    def tell(self, results: dict[str, str]) -> None:
        for id, text in results.items():
            item = {"type": "function_call_output", "call_id": id, "output": text}
            self._history.append(item)


class Messages(Conversation):
    """Anthropic's messages, with a line before the system prompt as Claude Code has it."""

    name, path = "messages", "/v1/messages"

    def body(self, seed: int) -> Json:
        tally = f"x-anthropic-billing-header: cc_version=2.1; cch={seed:05x};"
        tool = {"description": ABOUT, "input_schema": PARAMETERS}
        return {
            "model": self._model,
            "system": [{"type": "text", "text": text} for text in (tally, self._system)],
            "messages": self._history,
            "tools": [{**tool, "name": name} for name in NAMES],
            "seed": seed,
            "max_tokens": MOST,
        }

    def take(self, reply: Json) -> tuple[list[str], Found]:
        usage = reply["usage"]
        self._history.append({"role": "assistant", "content": reply["content"]})
        calls = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
        cached = usage["cache_read_input_tokens"]
        created = usage.get("cache_creation_input_tokens") or 0
        return calls, Found(usage["input_tokens"] + cached + created, cached)

    def tell(self, results: dict[str, str]) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": id, "content": text}
            for id, text in results.items()
        ]
        self._history.append({"role": "user", "content": blocks})


APIS = (Chat, ChatWithoutThoughts, Responses, Messages)
