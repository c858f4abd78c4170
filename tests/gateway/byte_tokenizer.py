"""A tokenizer whose tokens are bytes, and a chat template of lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
from tokenizers import AddedToken

from penstock.text.as_written import PackedMessages, Place, read_texts
from penstock.text.template import RenderedChat
from penstock.text.token_table import TokenBytes

END = 256
VOCABULARY = 257


class ByteTokenizer:
    """A token is a byte; 256 is a special token, written <|end|>."""

    vocab_size = VOCABULARY
    special_ids = frozenset({END})
    special_tokens: ClassVar = {"<|end|>": END}
    added_tokens: ClassVar[dict[int, Any]] = {
        END: AddedToken("<|end|>", special=True, normalized=False)
    }
    add_bos = False
    bos_token_id = None
    table = SimpleNamespace(byte_level=True)

    def encode(
        self,
        text: str,
        *,
        parse_special: bool = True,
        add_special: bool = True,
        begins: bool = True,
        most: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ):
        ids: list[int] = []
        for i, part in enumerate(text.split("<|end|>") if parse_special else [text]):
            ids += ([END] if i else []) + list(part.encode())
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids if i != END).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return b"<|end|>" if token == END else bytes([token])

    def visible_bytes(self, skip_special_tokens: bool) -> TokenBytes:
        end = b"" if skip_special_tokens else self.token_bytes(END)
        return TokenBytes.of([*(bytes([value]) for value in range(END)), end])

    def has_token(self, token: int) -> bool:
        return 0 <= token < VOCABULARY

    def token_names(self, ids: list[int]) -> list[str]:
        return [self.token_text(token) for token in ids]

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode("utf-8", "replace")


class LineTemplate:
    """role: content, a line each. Keeps what it was called with."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer = tokenizer
        self.opening = "assistant:"
        self.calls: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
        self.times: list[int | None] = []
        """What it was told of the time."""

    source = "{{ messages }}"

    def fill_here(self) -> None:
        """It is never filled elsewhere."""

    def names(self, variable: str) -> bool:
        return variable in self.source

    def arranges_at_once(self, traits: Any) -> bool:
        return True

    def arranged(
        self, messages: list[dict[str, Any]], write: Any = None, traits: Any = None
    ) -> list[dict[str, Any]]:
        """It shows any turns."""
        return messages

    shows_tools_at_once = True

    def shows_tools(self) -> bool:
        return True

    async def rendered(
        self, now: int | None = None, /, *, add_generation_prompt: bool = True, **given: Any
    ) -> RenderedChat:
        self.times.append(now)
        messages, kwargs = self._read(given)
        self.calls.append((messages, {"add_generation_prompt": add_generation_prompt, **kwargs}))
        text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
        if kwargs.get("continue_final_message"):
            text = text[:-1]
        if add_generation_prompt:
            text += self.opening
        return self._rendered(text)

    def _read(self, given: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and variables, as the renderer's process sees them."""
        messages = given["messages"]
        places: list[Place] = []
        if isinstance(messages, PackedMessages):
            given, places = {**given, "messages": messages.packed}, messages.places
        read = {
            name: msgspec.msgpack.decode(value) if isinstance(value, msgspec.Raw) else value
            for name, value in given.items()
        }
        told = read.pop("messages")
        read_texts(told, places)
        return told, read

    def _rendered(self, text: str) -> RenderedChat:
        return RenderedChat(
            text, lambda most: self.encode(text), lambda change: self._rendered(change(text))
        )

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)
