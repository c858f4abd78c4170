"""The special tokens that stand for media, by what config.json calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields

if TYPE_CHECKING:
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
        return self._text_of(self._config, key, self._config.integer(key))

    def within(self, section: str, key: str, default: int) -> tuple[str, int]:
        """(text, id) of the token whose id a section of config.json has. default: where it doesn't
        say."""
        fields = self._config.section(section)
        return self._text_of(fields, key, fields.integer(key, default))

    def _text_of(self, fields: Fields, key: str, token: int) -> tuple[str, int]:
        if token not in self._texts:
            raise UnsupportedModel(
                f"{fields.where}: {key} is {token}, which is no special token of "
                "tokenizer.json; media have no place in a prompt then"
            )
        return self._texts[token], token

    def called(self, text: str) -> tuple[str, int]:
        """(text, id) of the special token with that text."""
        self.check(text)
        return text, self._by_text[text]

    def knows(self, text: str) -> bool:
        """Whether there is a special token with that text."""
        return text in self._by_text

    def check(self, text: str) -> None:
        if text not in self._by_text:
            raise UnsupportedModel(
                f"beside {self._config.where}: tokenizer.json lacks the special token {text}, "
                "which stands around pictures"
            )
