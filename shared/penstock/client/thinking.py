"""The budget of a request's thoughts, as tokens of the model that is asked."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.client.served_model import ModelText
from penstock.errors import InvalidRequest
from penstock.parsing import reasoning_parser
from penstock.parsing.format import ChannelFormat, ThoughtFormat
from penstock.protocol.common import ThinkingBudget
from penstock.protocol.to_frontend import Welcome
from penstock.text.tokenizer import Tokenizer

FIELD = "thinking_token_budget"
Thoughts = ThoughtFormat | ChannelFormat
_ROLE = "assistant"
"""Whose message begins where thoughts in a channel have been closed."""


def asked_budget(
    tokens: int,
    parser: str,
    welcome: Welcome,
    text: ModelText,
    prompt_token_ids: Sequence[int],
) -> ThinkingBudget | None:
    """Returns the worker's form of the SamplingParams' thinking_token_budget; None where it is -1.
    parser: --reasoning-parser. Raises InvalidRequest."""
    if tokens < 0:
        return None
    form = thoughts_of(parser, welcome, text)
    return thinking_budget(tokens, form, text.tokenizer, prompt_token_ids)


def thinking_budget(
    tokens: int,
    form: Thoughts | None,
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
) -> ThinkingBudget:
    """Returns the worker's form of a budget of so many tokens. form: how the model marks its
    thoughts. Raises InvalidRequest where it doesn't mark them with tokens of their own."""
    unbounded = unbounded_thoughts(form, tokenizer)
    if unbounded or form is None:
        raise InvalidRequest(
            f"{FIELD} is {tokens}, but {unbounded}; allowed: -1 or null",
            param=FIELD,
            code="unsupported_value",
        )
    begin, ends, closing = _marks(form)
    begin_ids = _ids(begin, tokenizer)
    end_ids = tuple(_ids(end, tokenizer) for end in ends)
    return ThinkingBudget(
        tokens=tokens,
        begin=begin_ids,
        ends=end_ids,
        closing=_ids(closing, tokenizer),
        spent=_spent(form, begin_ids, end_ids, tokenizer, prompt_token_ids),
    )


def thoughts_of(parser: str, welcome: Welcome, text: ModelText) -> Thoughts | None:
    """How a model marks its thoughts; None where that isn't known. parser: --reasoning-parser."""
    template = "" if text.template is None else text.template.source
    found = reasoning_parser(parser, template, welcome.family)
    return None if found is None else found.form


def unbounded_thoughts(form: Thoughts | None, tokenizer: Tokenizer) -> str:
    """Why thoughts that are marked so can't be held to a budget; empty: they can.

    A mark that begins with a token of its own is always those tokens; any other text has many
    tokenisations, so that its end could be missed.
    """
    if form is None:
        return (
            "it isn't known how this model marks its thoughts (--reasoning-parser names the format)"
        )
    begin, ends, _ = _marks(form)
    for mark in (begin, *ends):
        if not (ids := _ids(mark, tokenizer)) or ids[0] not in tokenizer.added_tokens:
            return f"this model's thoughts are marked with text, {mark!r}, which is no token"
    return ""


def _marks(form: Thoughts) -> tuple[str, tuple[str, ...], str]:
    """What opens thoughts, what ends them, and what closes them early."""
    if isinstance(form, ThoughtFormat):
        begin, end = form.block
        return begin.rstrip(), (end, *form.ended_by), end
    begin = f"{form.channel}{form.thoughts[0]}{form.text}"
    answer = f"{form.begin}{_ROLE}{form.channel}{form.answer}{form.text}"
    return begin, form.ends, f"{form.ends[0]}{answer}"


def _ids(mark: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(mark, add_special=False))


def _spent(
    form: Thoughts,
    begin: tuple[int, ...],
    ends: tuple[tuple[int, ...], ...],
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
) -> int | None:
    """Number of tokens of open thoughts that the prompt has; None: it has none open."""
    prompt = array("q", prompt_token_ids)
    begun = _last(prompt, begin)
    ended = max(_last(prompt, end) for end in ends)
    if begun > ended:
        return len(prompt) - begun
    if not isinstance(form, ThoughtFormat) or not form.open_at_first:
        return None
    over = ended >= 0 and not tokenizer.decode(prompt[ended:].tolist()).strip()
    return None if over else 0


def _last(ids: array[int], mark: tuple[int, ...]) -> int:
    """The place after the last such mark; -1: there is none."""
    text, sought, size = ids.tobytes(), array("q", mark).tobytes(), ids.itemsize
    at = text.rfind(sought)
    while at >= 0 and at % size:
        at = text.rfind(sought, 0, at + len(sought) - 1)
    return -1 if at < 0 else at // size + len(mark)
