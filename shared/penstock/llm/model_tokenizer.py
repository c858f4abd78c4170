"""The tokenizer that `get_tokenizer()` gives: transformers' method names, without transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.client.served_model import ModelText
from penstock.errors import InvalidRequest
from penstock.llm.prompts import Message, render_chat, tokenise_chat
from penstock.model.prepared_model import GenerationDefaults


class ModelTokenizer:
    """Text to token ids and back, as the served model has it.

    eos_token_id, bos_token_id: None where the model states none.
    """

    def __init__(self, text: ModelText, generation: GenerationDefaults, name: str) -> None:
        self._text = text
        self._tokenizer = text.tokenizer
        self.name_or_path = name
        self.bos_token_id = generation.bos_token_id
        self.eos_token_ids = generation.eos_token_ids
        self.eos_token_id = generation.eos_token_ids[0] if generation.eos_token_ids else None
        self.pad_token_id = self.eos_token_id

    @property
    def bos_token(self) -> str | None:
        return self._spelling(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self._spelling(self.eos_token_id)

    @property
    def pad_token(self) -> str | None:
        return self.eos_token

    @property
    def vocab_size(self) -> int:
        """Number of token ids: the highest id plus one."""
        return self._tokenizer.vocab_size

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def all_special_tokens(self) -> list[str]:
        return list(self._tokenizer.special_tokens)

    @property
    def all_special_ids(self) -> list[int]:
        return list(self._tokenizer.special_tokens.values())

    @property
    def chat_template(self) -> str | None:
        """The model's template, as Jinja source."""
        return None if self._text.template is None else self._text.template.source

    def get_vocab(self) -> dict[str, int]:
        """Spelling -> id of every token."""
        return {text: i for i, text in enumerate(self._tokenizer.table.texts) if text is not None}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. add_special_tokens: whether BOS is put in front, if the model uses it."""
        return self._tokenizer.encode(text, add_special=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = True
    ) -> dict[str, Any]:
        """input_ids and attention_mask, as lists: one text's, or a list for several."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        rows = [self.encode(one, add_special_tokens) for one in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """The vocabulary's spelling of an id, or of several."""
        if isinstance(ids, int):
            return self._spelling(ids)
        return [self._spelling(one) for one in ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token's spelling, or of several; None for one that isn't there."""
        vocabulary = self.get_vocab()
        if isinstance(tokens, str):
            return vocabulary.get(tokens)
        return [vocabulary.get(one) for one in tokens]

    def apply_chat_template(
        self,
        conversation: list[Message] | list[list[Message]],
        tools: list[dict[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> Any:
        """Token ids of a conversation, or its text; for a list of conversations, a list.

        Special tokens inside messages are plain text here, unlike in transformers.
        """
        if conversation and not isinstance(conversation[0], dict):
            return [
                self.apply_chat_template(
                    one,
                    tools,
                    tokenize=tokenize,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    **variables,
                )
                for one in conversation
            ]
        if not isinstance(conversation, (list, tuple)):
            raise InvalidRequest("a conversation must be a list of messages")
        make = tokenise_chat if tokenize else render_chat
        return make(
            list(conversation),  # type: ignore[arg-type]
            self._text,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={"tools": tools, **variables},
        )

    def _spelling(self, token: int | None) -> str | None:
        if token is None or not self._tokenizer.has_token(token):
            return None
        added = self._tokenizer.added_tokens.get(token)
        return added.content if added is not None else self._tokenizer.table.texts[token]

    def __repr__(self) -> str:
        return f"ModelTokenizer({self.name_or_path!r}, vocab_size={self.vocab_size})"
