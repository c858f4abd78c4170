"""The special tokens that stand for media, by what config.json calls them."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.text.tokenizer import Tokenizer


class MediaTokens:
    """The special tokens of the model's tokenizer that stand for media. config: config.json."""

    def __init__(self, tokenizer: Tokenizer, config: Fields) -> None:
        self._by_text = tokenizer.special_tokens
        self._texts = {token: text for text, token in self._by_text.items()}
        self._config = config

    def has(self, key: str) -> bool:
        """Whether config.json names a special token by that key."""
        return key in self._config and self._config.integer(key) in self._texts

    def named(self, *keys: str) -> tuple[str, int]:
        """(text, id) of the token whose id the first of the keys has that is there."""
        key = next((key for key in keys if key in self._config), keys[0])
        token = self._config.integer(key)
        if token not in self._texts:
            raise UnsupportedModel(
                f"{self._config.where}: {key} is {token}, which is no special token of "
                "tokenizer.json; media have no place in a prompt then"
            )
        return self._texts[token], token

    def called(self, text: str) -> tuple[str, int]:
        """(text, id) of the special token with that text."""
        self.check(text)
        return text, self._by_text[text]

    def check(self, text: str) -> None:
        if text not in self._by_text:
            raise UnsupportedModel(
                f"beside {self._config.where}: tokenizer.json lacks the special token {text}, "
                "which stands around pictures"
            )
