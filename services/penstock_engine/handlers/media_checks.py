"""Checks the media of a Submit: the engine trusts no front end to have done it."""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.errors import InvalidRequest
from penstock.protocol.media import MAX_MEDIA_ITEMS, MAX_MEDIA_SPANS, Media, MediaItem
from penstock_engine.handlers.ranges import MAX_COUNT, check_whole
from penstock_engine.media.entry import cost_of
from penstock_engine.media.request_media import most_rows, wholes_of

MAX_GRID = 8
"""Numbers that say how an item's positions run."""

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def check_media(media: Media, prompt_tokens: int) -> None:
    """Raises InvalidRequest unless items and spans say what can be. prompt_tokens: of the
    prompt."""
    if not 1 <= len(media.items) <= MAX_MEDIA_ITEMS:
        raise InvalidRequest(
            f"a request may have at most {MAX_MEDIA_ITEMS} images, audios and videos, not"
            f" {len(media.items)}",
            param="media",
        )
    if not 1 <= len(media.spans) <= MAX_MEDIA_SPANS:
        raise InvalidRequest(
            f"its media must fill 1 to {MAX_MEDIA_SPANS} spans of the prompt, not "
            f"{len(media.spans)}",
            param="media",
        )
    for item in media.items:
        _check_item(item)
    names = {item.name for item in media.items}
    if len(names) != len(media.items):
        raise InvalidRequest("an item of its media appears twice", param="media")
    _check_spans(media, prompt_tokens)


def _check_item(item: MediaItem) -> None:
    for what, value in (("name", item.name), ("digest", item.digest)):
        if _DIGEST.fullmatch(value) is None:
            raise InvalidRequest(
                f"the {what} of an item of its media must be 64 hexadecimal digits", param="media"
            )
    check_whole("rows of an item", item.rows, 1, MAX_COUNT)
    check_whole("size of an item", item.size, 1, MAX_COUNT)
    if len(item.grid) > MAX_GRID:
        raise InvalidRequest(f"an item's grid has more than {MAX_GRID} numbers", param="media")
    for number in item.grid:
        check_whole("a number of an item's grid", number, 0, MAX_COUNT)


def _check_spans(media: Media, prompt_tokens: int) -> None:
    before, shown = 0, [False] * len(media.items)
    for span in media.spans:
        if not 0 <= span.item < len(media.items):
            raise InvalidRequest(
                f"a span of its media refers to item {span.item}; the request has "
                f"{len(media.items)}",
                param="media",
            )
        shown[span.item] = True
        check_whole("tokens of a span", span.tokens, 1, MAX_COUNT)
        check_whole("first of a span", span.first, 0, MAX_COUNT)
        if span.offset < before or span.end > prompt_tokens:
            raise InvalidRequest(
                f"a span of its media has tokens {span.offset} to {span.end - 1}; it must begin at "
                f"{before} or later, where the previous one ends, and end within the prompt's "
                f"{prompt_tokens} tokens",
                param="media",
            )
        rows = media.items[span.item].rows
        if span.first + span.tokens > rows:
            raise InvalidRequest(
                f"a span of its media has embeddings {span.first} to"
                f" {span.first + span.tokens - 1} of an item that has {rows}",
                param="media",
            )
        before = span.end
    if not all(shown):
        raise InvalidRequest(
            f"item {shown.index(False)} of its media has no placeholders in the prompt",
            param="media",
        )


def check_alone(media: Media, prompt_tokens: int) -> None:
    """Raises InvalidRequest unless a prompt is one item's one row. media: checked."""
    rows = [item.rows for item in media.items]
    if rows != [1] or prompt_tokens != 1:
        raise InvalidRequest(
            "an input with media must be one item without text, which takes one token; this one "
            "has"
            f" {len(rows)} in {prompt_tokens} tokens",
            param="media",
        )


def lacks_encoder_item(media: Media | None, prompt_tokens: int, rows: int) -> str | None:
    """Why a prompt can't run on an encoder-decoder model; None: it can. rows: of an item, whose
    placeholders the prompt begins with."""
    spans = () if media is None else media.spans
    if not spans:
        return "this model needs one media item per request, such as a sound; the request has none"
    if len(spans) != 1 or spans[0].offset or spans[0].tokens != rows:
        return (
            f"this model's prompts must begin with one item of {rows} placeholders and have no "
            "others"
        )
    if prompt_tokens <= rows:
        return "the decoder's prompt is empty"
    return None


def misfit(
    media: Media,
    *,
    rows: int | None,
    load_bytes: int,
    step_tokens: int | None,
    step_holds: Callable[[int, int], bool] | None = None,
) -> str | None:
    """Why it can never run; None: it can.

    rows: of encodings, that the worker keeps; 0: it takes no media; None: there is no worker yet.
    load_bytes: of prepared items, that workers hold.  step_tokens: of a step, where a span is
    computed in one; else None.
    step_holds: likewise, whether there are KV blocks for tokens from the first to the second of a
    sequence in one step.
    """
    size = sum(map(cost_of, media.items))
    if size > load_bytes:
        return (
            f"its prepared media have {size} bytes; at most {load_bytes} are allowed "
            "(--media-load-mib)"
        )
    if rows == 0:
        return "this model takes no images, audio or video"
    needed = most_rows(media)
    if rows is not None and needed > rows:
        return (
            f"its media need {needed} embeddings at a time; the encoder cache has room for {rows}"
            " (--encoder-cache-rows)"
        )
    which = (
        "its media with the text between them take" if media.joined else "one of its media takes"
    )
    for whole in wholes_of(media):
        tokens = whole.end - whole.start
        if step_tokens is not None and tokens > step_tokens:
            return (
                f"{which} {tokens} tokens, which are computed in one step; a step has {step_tokens}"
                " (--max-num-batched-tokens)"
            )
        if step_holds is not None and not step_holds(whole.start, whole.end):
            return (
                f"{which} tokens {whole.start} to {whole.end - 1}, which are computed in one step; "
                "there are not enough KV blocks for that (--num-kv-blocks)"
            )
    return None
