"""Chat templates: from messages to token ids.

A template is a program that came with the model; a message is text that came from a client.  The
program's special tokens are parsed; the client's are plain text, so that no message can end its
own turn or begin another's.  See `penstock.text.disarm` for how they are kept apart, and
`penstock.text.render` for the process in which the program runs.
"""

from __future__ import annotations

import itertools
import re
import secrets
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import Field, InvalidRequest
from penstock.model.prepared_model import GenerationDefaults
from penstock.text.arrangement import THOUGHTS, Arrangement, Traits, traits_of
from penstock.text.as_written import PackedMessages, with_texts
from penstock.text.disarm import Disarmed
from penstock.text.render.pool import RenderPool, shared_pool
from penstock.text.render.wire import Fill, Filled, TemplateSource
from penstock.text.segment_encoder import SegmentEncoder
from penstock.text.template_shape import ContentShape, one_message, shape_of
from penstock.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from penstock.text.render.here import LocalRenderer

MAX_RENDERED_LENGTH = 16 << 20
"""Characters that a rendered conversation may have."""

_NUMBERS = itertools.count()

WriteCalls = Callable[[Sequence[dict[str, Any]], Callable[[str], str]], str]
"""The text of calls as the model writes them, given what stands for each mark that is a token."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation in its template. text: for people to look at, not to be encoded: in it, a
    message's special tokens look the same as the template's.  encode: the token ids, of at most so
    many tokens as `Tokenizer.encode` has it.
    changed: with another text, made of the one in which messages' special tokens are broken."""

    text: str
    encode: Callable[[int | None], list[int]]
    changed: Callable[[Callable[[str], str]], RenderedChat]


class ChatTemplate:
    """A chat template. Safe to share between threads.

    source: a Jinja template, as models of the hub carry it.  One that doesn't compile refuses every
    conversation.
    generation: names BOS and EOS (the first of eos_token_ids), which templates refer to.
    pool: the processes that fill it; default: this process's own.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        generation: GenerationDefaults | None = None,
        pool: RenderPool | None = None,
    ) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._variables = token_variables(tokenizer, generation)
        self._special = frozenset(tokenizer.special_tokens)
        self._sent = TemplateSource(source, self._special, self._variables)
        self._encoder = SegmentEncoder(tokenizer)
        self._number = next(_NUMBERS)
        self._shape: ContentShape | None = None
        own = weakref.proxy(self)
        self._arrangement = Arrangement(
            lambda turns, **more: own.render(turns, **more),
            lambda: own.content_shape().texts,
            filter(self.names, THOUGHTS),
        )
        self._secret = secrets.token_hex(12)
        pool = pool or shared_pool()
        self._pool: RenderPool | LocalRenderer = pool
        self._leave = weakref.finalize(self, pool.join())

    def names(self, variable: str) -> bool:
        """Whether the template's text has this word: it may look at such a variable."""
        return re.search(rf"\b{re.escape(variable)}\b", self.source) is not None

    def close(self) -> None:
        """Lets go of the renderer processes. Idempotent."""
        self._leave()

    def fill_here(self) -> None:
        """From now on it is filled in this process, whose work is to be bounded, and in its forks,
        which have what the first filling makes."""
        from penstock.text.render.here import LocalRenderer

        self._pool = LocalRenderer()
        with suppress(InvalidRequest):  # Not every template takes it.
            self.encode([{"role": "user", "content": "a"}])

    def encode(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation. BOS is in them only if the template writes it. Blocks for as
        long as the template runs; see `rendered`.

        messages: as in OpenAI's API; content of whatever shape the template takes.
        continue_final_message: the text ends where the last message's content does.
        kwargs: more variables for the template (tools, enable_thinking, ...).
        Raises InvalidRequest with the template's own message if it refuses the conversation.
        """
        return self.filled(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **kwargs,
        ).encode(None)

    def filled(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> RenderedChat:
        """Text and ids of a conversation, of the same filling. Arguments are those of `encode`."""
        given = _given(messages, add_generation_prompt, continue_final_message, kwargs)
        return self._rendered(
            self._pool.filled(self._sent, self._asked(given, continue_final_message))
        )

    async def rendered(
        self,
        now: int | None = None,
        /,
        *,
        messages: list[dict[str, Any]] | PackedMessages,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> RenderedChat:
        """Text of a conversation, filled in an event loop; the ids are left to the caller, as they
        may take time. now: the template's current time, Unix, seconds; None: the clock's. Other
        arguments are those of `encode`.

        What the template is given besides messages may be msgspec.Raw of msgpack.
        """
        given = _given(messages, add_generation_prompt, continue_final_message, kwargs)
        return self._rendered(
            await self._pool.filled_async(
                self._sent, self._asked(given, continue_final_message, now=now)
            )
        )

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The conversation as one text, for people to look at; see RenderedChat.text."""
        given = _given(messages, add_generation_prompt, continue_final_message, kwargs)
        asked = self._asked(given, continue_final_message, apart=False)
        return self._with_marks(self._pool.filled(self._sent, asked).text)

    @property
    def known_shape(self) -> ContentShape | None:
        """What `content_shape` has found; None before."""
        return self._shape

    def content_shape(self) -> ContentShape:
        """What a message's content may be; asks the template once, and blocks meanwhile."""
        if self._shape is None:
            self._shape = shape_of(lambda content: self.render(one_message(content)))
        return self._shape

    def arranged(
        self,
        messages: list[dict[str, Any]],
        write: WriteCalls | None = None,
        traits: Traits | None = None,
    ) -> list[dict[str, Any]]:
        """The messages as the template shows them, see `penstock.text.arrangement`. The first
        conversation whose turns are not simple asks the template, and blocks meanwhile. write:
        calls, where it shows none; None: they are left to it.  traits: of the messages; None: they
        are looked for."""
        write_marked = None if write is None else lambda calls: write(calls, self._mark)
        return self._arrangement.of(messages, write_marked, traits or traits_of(messages))

    def arranges_at_once(self, traits: Traits) -> bool:
        """Whether `arranged` asks nothing for a conversation with these."""
        return self._arrangement.is_known(traits)

    @property
    def shows_tools_at_once(self) -> bool:
        """Whether `shows_tools` asks nothing."""
        return self._arrangement.knows_tools

    def shows_tools(self) -> bool:
        """Whether the template shows the model the tools that it may call. Renders it once, and
        blocks meanwhile."""
        return self._arrangement.shows_tools()

    def _mark(self, token: str) -> str:
        """What stands in a message for a special token that isn't the client's."""
        if token not in self._special:
            return token
        return f"{self._secret}x{sorted(self._special).index(token)}x"

    def _with_marks(self, text: str) -> str:
        if self._secret not in text:
            return text
        special = sorted(self._special)
        return re.sub(rf"{self._secret}x(\d+)x", lambda found: special[int(found[1])], text)

    def _rendered(self, filled: Filled) -> RenderedChat:
        return self._readable(self._with_marks(filled.text), Disarmed({}, filled.stand_ins))

    def _readable(self, text: str, disarmed: Disarmed) -> RenderedChat:
        return RenderedChat(
            disarmed.restore(text) if disarmed.stand_ins else text,
            lambda most: self._ids(text, disarmed, most),
            lambda change: self._readable(change(text), disarmed),
        )

    def _ids(self, text: str, disarmed: Disarmed, most: int | None) -> list[int]:
        if not disarmed.stand_ins:
            return self._tokenizer.encode(text, add_special=False, most=most)
        return self._encoder.encode(text, disarmed.restore, most=most)

    def _asked(
        self,
        given: dict[str, Any],
        continued: bool,
        *,
        apart: bool = True,
        now: int | None = None,
    ) -> Fill:
        shown: Any
        messages = given["messages"]
        if isinstance(messages, PackedMessages):
            shown, written = messages.packed, messages.places
        else:
            shown, written = with_texts(messages)
        return Fill(
            self._number,
            {**given, "messages": shown},
            MAX_RENDERED_LENGTH,
            apart=apart,
            continued=continued,
            written=written,
            now=now,
        )


def _given(
    messages: list[dict[str, Any]] | PackedMessages,
    opening: bool,
    continued: bool,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    if continued and opening:
        raise InvalidRequest(
            "continue_final_message and ",
            Field("add_generation_prompt"),
            " can't both be true",
            param="continue_final_message",
        )
    return {
        "messages": messages,
        "tools": None,
        "documents": None,
        **kwargs,
        "add_generation_prompt": opening,
    }


def token_variables(tokenizer: Tokenizer, generation: GenerationDefaults | None) -> dict[str, str]:
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


# Encodes a text whose special tokens are known to be meant, and the rest known to be plain.
#
