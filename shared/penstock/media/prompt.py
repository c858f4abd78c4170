"""A filled chat template, or a prompt's text, with its media, as token ids and places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import InvalidRequest
from penstock.media.item_names import PreparedItems, PromptMedia
from penstock.media.placeholders import (
    ids_with_runs,
    in_front,
    uncounted,
    with_one,
    with_rows,
    with_runs,
)
from penstock.media.words import WORDS
from penstock.protocol.media import MediaSpan
from penstock.text.template import RenderedChat
from penstock.text.template_shape import Marks
from penstock.text.tokenizer import Tokenizer


class MediaPrompt(NamedTuple):
    """Token ids with a place for each embedding, and what the places hold."""

    prompt_token_ids: list[int]
    media: PromptMedia


def of_chat(
    rendered: RenderedChat, items: PreparedItems, marks: Marks
) -> Callable[[int | None], MediaPrompt]:
    """Tokenises when it is called with the tokens that the text may have.

    marks: stand for items where the template takes no parts.  Raises InvalidRequest where the
    template doesn't show each item once.
    """
    facts = items.facts

    def change(text: str) -> str:
        for kind, own in facts.kinds.items():
            text = text.replace(marks.of(kind), own.placeholder)
        return with_runs(text, facts, items.layouts)

    try:
        filled = rendered.changed(change)
    except InvalidRequest as error:
        word = WORDS[items.layouts[0].kind]
        raise InvalidRequest(
            f"the chat template doesn't show each {word} of the messages once: {error}",
            param="messages",
        ) from None
    return lambda most: placed(filled.encode(most), items)


def of_text(text: str, tokenizer: Tokenizer, items: PreparedItems) -> MediaPrompt:
    """The prompt of a text in which a placeholder stands for each item. Where an encoder's item
    stands before the text, it has the special tokens that the text names, and no others. Raises
    InvalidRequest."""
    own = items.facts.in_front is None
    whole = with_runs(uncounted(text, items.facts), items.facts, items.layouts)
    return placed(tokenizer.encode(whole, add_special=own), items)


def of_ids(
    prompt_token_ids: Sequence[int], tokenizer: Tokenizer, items: PreparedItems
) -> MediaPrompt:
    """The prompt of token ids in which a placeholder stands for each item. Raises
    InvalidRequest."""
    kinds = {kind: each for kind, each in items.facts.kinds.items() if each.placeholder}

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    ids, placeholders = list(prompt_token_ids), {}
    for kind, each in kinds.items():
        mark = encode(each.placeholder)
        ids = with_one(ids, mark, each.token_id)
        placeholders[mark[0] if len(mark) == 1 else each.token_id] = kind
    return placed(ids_with_runs(ids, items.facts, placeholders, items.layouts, encode), items)


def placed(prompt_token_ids: Sequence[int], items: PreparedItems) -> MediaPrompt:
    """The prompt of ids in which each run of embeddings has one token, or none where an encoder's
    item stands before all. Raises InvalidRequest."""
    facts, kind = items.facts, items.facts.in_front
    if kind is not None:
        ids, spans = in_front(prompt_token_ids, facts, kind, items.layouts)
        return MediaPrompt(ids, items.media(spans, len(ids) - len(prompt_token_ids)))
    ids, spans = with_rows(prompt_token_ids, facts, items.layouts)
    return MediaPrompt(ids, items.media(spans))


def by_itself(items: PreparedItems) -> MediaPrompt:
    """The prompt of an item that is an input without any text. Raises InvalidRequest for
    several."""
    if len(items.layouts) != 1:
        raise InvalidRequest(
            f"an input has {len(items.layouts)} {WORDS[items.layouts[0].kind]}s; this model makes "
            "a vector of one"
        )
    (one,) = items.layouts
    ids = [items.facts.kinds[one.kind].token_id] * one.rows
    return MediaPrompt(ids, items.media((MediaSpan(0, 0, one.rows, 0),)))
