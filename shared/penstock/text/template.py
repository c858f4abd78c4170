"""Chat templates: from messages to token ids.

A template is a program that came with the model; a message is text that came from a client.  The
program's special tokens are parsed; the client's are plain text, so that no message can end its
own turn or begin another's.  See `penstock.text.disarm` for how they are kept apart.
"""

from __future__ import annotations

from typing import Any

import jinja2

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.model_config import GenerationDefaults
from penstock.text.disarm import disarm
from penstock.text.jinja_environment import make_environment
from penstock.text.segments import SegmentEncoder
from penstock.text.tokenizer import Tokenizer

MAX_RENDERED_LENGTH = 16 << 20
"""Characters that a rendered conversation may have."""


class ChatTemplate:
    """A compiled chat template. Safe to share between threads.

    source: a Jinja template, as models of the hub carry it.
    generation: names BOS and EOS (the first of eos_token_ids), which templates refer to.
    Raises UnsupportedModel if the template doesn't compile.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, *, generation: GenerationDefaults | None = None
    ) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._variables = _token_variables(tokenizer, generation)
        self._special = frozenset(tokenizer.special_tokens)
        self._encoder = SegmentEncoder(tokenizer)
        try:
            self._template = make_environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise UnsupportedModel(f"the chat template doesn't compile: {error}") from error

    def encode(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> list[int]:
        """Token ids of a conversation. BOS is in them only if the template writes it.

        messages: as in OpenAI's API; content of whatever shape the template takes.
        kwargs: more variables for the template (tools, enable_thinking, ...).
        Raises InvalidRequest with the template's own message if it refuses the conversation.
        """
        given = {"messages": messages, "tools": None, "documents": None, **kwargs}
        disarmed = disarm(given, self._special, self.source)
        text = self._render({**disarmed.values, "add_generation_prompt": add_generation_prompt})
        if not disarmed.stand_ins:
            return self._tokenizer.encode(text, add_special=False)
        return self._encoder.encode(text, disarmed.restore)

    def render(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """The conversation as one text, for people to look at. Not to be encoded: in it, a
        message's special tokens can't be told from the template's."""
        given = {"messages": messages, "tools": None, "documents": None, **kwargs}
        return self._render({**given, "add_generation_prompt": add_generation_prompt})

    def _render(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate({**self._variables, **variables}):
                length += len(piece)
                if length > MAX_RENDERED_LENGTH:
                    raise InvalidRequest(
                        f"the conversation has more than {MAX_RENDERED_LENGTH} characters "
                        "once the chat template is filled",
                        param="messages",
                    )
                pieces.append(piece)
        except InvalidRequest:
            raise
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the chat template refused the messages: {error}", param="messages"
            ) from error
        except Exception as error:  # the template is a foreign program: anything may come
            raise InvalidRequest(
                f"the chat template can't take these messages: {type(error).__name__}: {error}",
                param="messages",
            ) from error
        return "".join(pieces)


def _token_variables(tokenizer: Tokenizer, generation: GenerationDefaults | None) -> dict[str, str]:
    """Names that templates use for special tokens; one that the model lacks stays undefined."""
    if generation is None:
        return {}
    ids = {"bos_token": generation.bos_token_id}
    if generation.eos_token_ids:
        ids["eos_token"] = generation.eos_token_ids[0]
    added = tokenizer.added_tokens
    return {
        name: added[token].content if token in added else tokenizer.table.texts[token] or ""
        for name, token in ids.items()
        if token is not None and tokenizer.has_token(token)
    }
