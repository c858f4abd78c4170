"""What pooling models are given: texts, pairs and token ids, cut where that was asked for; and what
is made of vectors outside of the worker."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from penstock.client.late_interaction import LateInput, Role, room_for_text
from penstock.client.pool_request import PoolResult, check_input, pooling_model
from penstock.errors import InvalidRequest
from penstock.media.item_names import PreparedItems, PromptMedia
from penstock.media.prompt import MediaPrompt, by_itself
from penstock.model.media_facts import MediaFacts
from penstock.model.pooling_config import PairTemplate
from penstock.protocol.common import Pooling
from penstock.protocol.to_frontend import Welcome
from penstock.text.tokenizer import Tokenizer

Side = Literal["left", "right"]
"""Where too long an input is cut."""

MAX_CHARACTERS_PER_TOKEN = 64
"""A longer text than this many for each token of the context isn't tokenised, unless it is cut."""

MOST_TIMES = 2
"""A text of more than this many times the model's tokens isn't tokenised to its end."""

MAX_CUT_CHARACTERS = 1 << 20
"""Most characters of a text that is cut, unless the model's length allows more."""


class PoolInput(msgspec.Struct, frozen=True):
    """An input in the form that the model reads: token ids and their types."""

    prompt_token_ids: list[int]
    token_types: bytes = b""
    """A byte for each id; empty: all 0."""
    media: PromptMedia | None = None
    """What the ids have places for."""
    seen: int = 0
    """How many of the tokens all of them see; 0: all (`Pooling.seen`)."""
    kept: tuple[int, ...] | None = None
    """Places of the tokens whose vectors are wanted; None: of all."""

    def asked(self, asked: Pooling) -> Pooling:
        """What is asked of this input."""
        return msgspec.structs.replace(asked, token_types=self.token_types, seen=self.seen)

    def result(self, result: PoolResult) -> PoolResult:
        """What is given of it: of vectors of tokens, those that are wanted."""
        if self.kept is None or len(result.vectors.shape) < 2:
            return result
        return result.of_rows(self.kept)


def limit_of(truncate: int | None, welcome: Welcome) -> int | None:
    """Tokens that inputs are cut to; None: they aren't. truncate: -1 means as many as the model
    takes.  Raises InvalidRequest."""
    longest = welcome.limits.max_model_len
    if truncate is None:
        return None
    if truncate == -1:
        return longest
    if not 1 <= truncate <= longest:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {truncate}; allowed: -1 (as many as the model takes), or "
            f"1 to {longest}",
            param="truncate_prompt_tokens",
        )
    return truncate


def text_input(
    text: str,
    pair: str | None,
    tokenizer: Tokenizer,
    welcome: Welcome,
    *,
    limit: int | None,
    side: Side | None = None,
    add_special: bool = True,
    role: Role = "document",
    instruction: str | None = None,
) -> PoolInput:
    """A text, or two that belong together, as the model's own tokenizer or its template puts them.
    side: where they are cut; None: right.  role: of a text for late interaction.  instruction: for
    the template, in place of its own.  Raises InvalidRequest."""
    size = len(text) + len(pair or "")
    most = welcome.limits.max_model_len * MAX_CHARACTERS_PER_TOKEN
    most = most if limit is None else max(most, MAX_CUT_CHARACTERS)
    if size > most:
        raise InvalidRequest(
            f"the input has {size} characters; at most {most} are accepted, and this model takes "
            f"at most {welcome.limits.max_model_len} tokens",
            param="input",
            code="context_length_exceeded",
        )
    template, late = pooling_model(welcome).template, pooling_model(welcome).late
    if pair is not None and template is not None:
        if limit is not None:
            raise InvalidRequest(
                "this model's prompt ends with the question and can't be truncated",
                param="truncate_prompt_tokens",
            )
        text, pair = template.filled(text, pair, instruction), None
    try:
        prompt_token_ids, types = tokenizer.encode_typed(
            text,
            pair,
            add_special=add_special,
            limit=limit if late is None else room_for_text(late, role, limit),
            keeps_end=side == "left",
            most=None if limit is not None else MOST_TIMES * welcome.limits.max_model_len,
        )
    except InvalidRequest as error:
        # A tokenizer speaks of a prompt.
        raise InvalidRequest(error.message, param="input", code=error.code) from None
    if late is not None:
        whole = LateInput(prompt_token_ids, late, role)
        check_input(whole.prompt_token_ids, welcome)
        return PoolInput(whole.prompt_token_ids, seen=whole.seen, kept=whole.kept)
    check_input(prompt_token_ids, welcome)
    padding = pooling_model(welcome).padding
    if padding is not None:
        return PoolInput(padding.filled(prompt_token_ids))
    return PoolInput(prompt_token_ids, types if any(types) else b"")


def picture_input(items: PreparedItems) -> PoolInput:
    """An item that is an input by itself. Raises InvalidRequest for several."""
    ids, media = by_itself(items)
    return PoolInput(ids, media=media)


def media_input(prompt: MediaPrompt, welcome: Welcome) -> PoolInput:
    """A prompt of text and media. Raises InvalidRequest for one that is too long."""
    ids, media = prompt
    check_input(ids, welcome, cut=False)
    return PoolInput(ids, media=media)


def refuse_cut(limit: int | None) -> None:
    """Raises InvalidRequest where an input is to be cut that can't be: one with media, or in the
    format of a chat."""
    if limit is not None:
        raise InvalidRequest(
            "truncate_prompt_tokens is given; an input with media, or in the format of a chat, "
            "can't be truncated",
            param="truncate_prompt_tokens",
        )


def check_pictures(welcome: Welcome) -> MediaFacts:
    """How pictures are prepared that are inputs by themselves. Raises InvalidRequest where none
    are."""
    if welcome.media is None or not welcome.media.alone:
        raise InvalidRequest(
            "no picture is an input by itself for this model; models such as CLIP embed images",
            param="model",
            code="unsupported_model",
        )
    return welcome.media


def ids_input(
    prompt_token_ids: list[int], welcome: Welcome, *, limit: int | None, side: Side | None = None
) -> PoolInput:
    """Token ids as they are; of too many, the last ones (as vLLM has it), or with side right the
    first. Raises InvalidRequest."""
    if limit is not None and side == "right":
        prompt_token_ids = prompt_token_ids[:limit]
    elif limit is not None:
        prompt_token_ids = prompt_token_ids[-limit:]
    check_input(prompt_token_ids, welcome)
    return PoolInput(prompt_token_ids)


def pair_up(first: int, second: int) -> list[tuple[int, int]]:
    """Which of `first` texts meets which of `second`: one meets all, else each its own. Raises
    InvalidRequest."""
    if first == 1:
        return [(0, other) for other in range(second)]
    if first == second:
        return [(each, each) for each in range(first)]
    raise InvalidRequest(
        f"there are {first} first and {second} second texts; allowed: 1 and any number, or the "
        "same number of each"
    )


def conversation_template(welcome: Welcome) -> PairTemplate | None:
    """How a pair becomes a conversation in the model's own format; None where it doesn't."""
    template = pooling_model(welcome).template
    return template if template is not None and template.system else None


def refuse_instruction(instruction: str | None) -> None:
    """Raises InvalidRequest for one, where the model's scores have none."""
    if instruction is not None:
        raise InvalidRequest(
            "this model's scores have no instruction; Qwen3-Reranker and models that see have one",
            param="instruction",
            code="unsupported_value",
        )


def cosine(one: list[float], other: list[float]) -> float:
    """Cosine of the angle between two vectors; 0 where one is 0."""
    lengths = math.sqrt(math.fsum(x * x for x in one) * math.fsum(x * x for x in other))
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / lengths if lengths else 0.0


def scores_pairs(welcome: Welcome) -> bool:
    """Whether the model is a cross-encoder, which reads both texts at once; else it embeds each.
    Raises InvalidRequest for a model that does neither."""
    labels = pooling_model(welcome).labels
    if len(labels) > 1:
        raise InvalidRequest(
            f"this model has {len(labels)} classes; scores are made by a model for embeddings, or "
            "one with a single class",
            param="model",
            code="unsupported_model",
        )
    return len(labels) == 1
