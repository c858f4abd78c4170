"""Prompts of the library's that wait for their media to be prepared.

A thousand prompts may be given at once; each one's media are prepared when it is about to run,
and let go when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.client.served_model import ModelText
from penstock.errors import InvalidRequest
from penstock.llm.encoder_decoder import joined
from penstock.llm.prompts import PROMPT_FIELDS, Message, fill_with_media, tokenise_prompt
from penstock.llm.sounds_given import MEDIA_FIELDS, has_media, processor_changes, sources_of
from penstock.media.budget import MediaLease
from penstock.media.desk import MediaDesk, not_taken
from penstock.media.item_names import PreparedItems, PromptMedia
from penstock.media.prompt import MediaPrompt, of_chat, of_ids, of_text
from penstock.media.sources import MediaSource


@dataclass(frozen=True, slots=True)
class LibraryPrompt:
    """A prompt that is checked. text: where there is one, for its output.  Without sources the ids
    are there; with some, `finish` makes them."""

    text: str | None
    prompt_token_ids: list[int]
    sources: tuple[MediaSource, ...] = ()
    finish: Callable[[PreparedItems], MediaPrompt] | None = None
    changes: dict[str, Any] | None = None

    async def ready(
        self, desk: MediaDesk, text: ModelText, lease: MediaLease
    ) -> tuple[list[int], PromptMedia | None]:
        """Token ids, and media that they have places for. Raises InvalidRequest, Overloaded or
        RequestFailed."""
        if self.finish is None:
            return self.prompt_token_ids, None
        items = await desk.prepare(text.media, self.sources, lease, self.changes)
        if items is None:
            return self.prompt_token_ids, None
        return self.finish(items)


def library_prompt(prompt: Any, text: ModelText) -> LibraryPrompt:
    """One of `generate`. Raises InvalidRequest."""
    prompt = joined(prompt)
    if not has_media(prompt):
        return LibraryPrompt(*tokenise_prompt(prompt, text))
    bare: Any = {name: value for name, value in prompt.items() if name not in MEDIA_FIELDS}
    unknown = prompt.keys() - PROMPT_FIELDS
    if unknown:
        raise InvalidRequest(
            f"a prompt has no field {sorted(unknown)[0]!r}; there are {', '.join(PROMPT_FIELDS)}"
        )
    words, ids = tokenise_prompt(bare, text)
    sources = tuple(sources_of(prompt))
    _check(text, sources)
    if prompt.get("prompt_token_ids") is not None:
        finish: Callable[[PreparedItems], MediaPrompt] = partial(of_ids, ids, text.tokenizer)
    else:
        finish = partial(of_text, words or "", text.tokenizer)
    return LibraryPrompt(words, ids, sources, finish, processor_changes(prompt))


def library_chat(messages: list[Message], text: ModelText, **options: Any) -> LibraryPrompt:
    """One of `chat`; options: of fill_chat. Raises InvalidRequest."""
    sources: list[MediaSource] = []
    changes = options.pop("mm_processor_kwargs", None)
    rendered, marks = fill_with_media(messages, text, sources, **options)
    if not sources:
        return LibraryPrompt(rendered.text, rendered.encode(None))

    def finish(items: PreparedItems) -> MediaPrompt:
        return of_chat(rendered, items, marks)(None)

    return LibraryPrompt(rendered.text, [], tuple(sources), finish, changes)


def without_media(prompt: LibraryPrompt, what: str) -> LibraryPrompt:
    """The prompt. Raises InvalidRequest where it has media."""
    if prompt.sources:
        raise InvalidRequest(f"{what} can't be combined with media")
    return prompt


def _check(text: ModelText, sources: tuple[MediaSource, ...]) -> None:
    for source in sources:
        if text.media is None or source.kind not in text.media.kinds:
            raise not_taken(source, text.media)
