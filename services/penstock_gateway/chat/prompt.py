"""A conversation through the model's chat template.

Also the fields by which clients of several servers say whether, how hard and how long a model is to
think before it answers: each becomes what the template knows, a budget of thoughts, or what the
reply leaves out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from penstock.client.thinking import FIELD
from penstock.errors import Field, InvalidRequest
from penstock.media.desk import MediaDesk, MediaLease
from penstock.media.items import PromptMedia
from penstock.media.prompt import of_chat
from penstock.parsing.written_calls import Call, Mark, writer_of
from penstock.text.as_written import PackedMessages, with_texts
from penstock.text.template import ChatTemplate
from penstock.text.template_shape import shaped, stand_ins
from penstock_gateway.chat.documents import with_documents
from penstock_gateway.chat.messages import (
    Message,
    template_messages,
)
from penstock_gateway.http.errors import clip
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.tokenising import (
    MAX_CHARACTERS_PER_TOKEN,
    MAX_GIVEN_BYTES,
    check_length,
    encode,
    most_tokens,
    off_the_loop,
    turn,
)

if TYPE_CHECKING:
    from penstock_gateway.storage.store import Store

RESERVED = frozenset(
    {
        "self",
        "messages",
        "add_generation_prompt",
        "continue_final_message",
        "tools",
        "documents",
        "chat_template",
    }
)
"""Variables that are a request's own fields."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the model reads it."""

    prompt_token_ids: list[int]
    text: str
    """The filled template, for people and parsers: the model reads the ids."""
    media: PromptMedia | None = None
    """The prompt's media; None for a prompt of text."""


@dataclass(frozen=True, slots=True)
class ChatMedia:
    """What a conversation's media are prepared with. lease: holds them for the request.
    changes: its own mm_processor_kwargs.  store: has the files that it names; None: there are
    none."""

    desk: MediaDesk
    lease: MediaLease
    changes: dict[str, Any] | None = None
    store: Store | None = None


def template_of(engine: EngineInfo) -> ChatTemplate:
    """Raises InvalidRequest where the model has none."""
    if engine.text.template is None:
        raise InvalidRequest(
            "this model has no chat template; use /v1/completions, or start the server with "
            "--chat-template",
            code="no_chat_template",
        )
    return engine.text.template


def _written_calls(engine: EngineInfo, source: str, calls: Sequence[Call], mark: Mark) -> str:
    write = writer_of(engine.config.tool_call_parser, source, engine.welcome.family)
    return write(calls, mark)


async def chat_prompt(
    engine: EngineInfo,
    messages: list[Message],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
    add_special_tokens: bool | None = None,
    variables: dict[str, Any],
    with_media: ChatMedia,
    now: int | None = None,
) -> ChatPrompt:
    """variables: more for the template.  add_special_tokens: BOS goes in front, where the template
    doesn't write it.  now: the time that the template knows, Unix, seconds; None: the clock's.
    Raises InvalidRequest, and what preparing media raises."""
    try:
        made = await _made(
            engine,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
            with_media=with_media,
            now=now,
        )
    except InvalidRequest as error:
        if error.param != "prompt":
            raise
        # That is what a text is called where it is tokenised.
        raise error.renamed(lambda path: "messages" if path == "prompt" else path) from None
    tokenizer = engine.text.tokenizer
    bos = tokenizer.bos_token_id if tokenizer.add_bos else None
    if not add_special_tokens or bos is None or made.prompt_token_ids[:1] == [bos]:
        return made
    media = None if made.media is None else made.media.moved(1)
    return ChatPrompt([bos, *made.prompt_token_ids], made.text, media)


async def _made(
    engine: EngineInfo,
    messages: list[Message],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    variables: dict[str, Any],
    with_media: ChatMedia,
    now: int | None,
) -> ChatPrompt:
    """What the template makes. Raises as chat_prompt."""
    template = template_of(engine)
    limit, facts = engine.welcome.limits.max_model_len, engine.welcome.media
    # Each message costs a token at least.
    found = await template_messages(messages, limit, partial(_filled, with_media, limit))
    plain, sources, traits = found.messages, found.sources, found.traits
    check_length(traits.characters, limit)
    if sources:
        with_media.desk.check_count(facts, sources)
    if traits.of_tools or traits.thinks or not traits.simple:
        write = partial(_written_calls, engine, template.source)
        if template.arranges_at_once(traits):
            plain = template.arranged(plain, write, traits)
        else:
            plain = await asyncio.to_thread(template.arranged, plain, write, traits)
    if facts is not None:
        shape = template.known_shape
        if shape is None:
            shape = await asyncio.to_thread(template.content_shape)
        if sources or not shape.texts:
            marks = stand_ins()
            plain = shaped(plain, shape, marks)
    opening = add_generation_prompt
    if opening is None:
        opening = not continue_final_message
    if continue_final_message:
        variables = {**variables, "continue_final_message": True}
    given, size = packed({**variables, "messages": plain}, limit, calls=traits.of_tools)
    try:
        async with turn(size):
            rendered = await template.rendered(now, add_generation_prompt=opening, **given)
    except InvalidRequest as error:
        raise _of_field(error, variables) from None
    media = items = None
    if sources:
        items = await with_media.desk.prepare(facts, sources, with_media.lease, with_media.changes)
    if items is None:
        prompt_token_ids = await encode(rendered.encode, len(rendered.text), limit)
    else:
        check_length(len(rendered.text), limit)
        make = of_chat(rendered, items, marks)
        prompt_token_ids, media = await off_the_loop(
            lambda: make(most_tokens(limit)), len(rendered.text)
        )
    return ChatPrompt(prompt_token_ids, rendered.text, media)


def _filled(with_media: ChatMedia, limit: int, messages: list[Message]) -> Awaitable[list[Message]]:
    return with_documents(messages, with_media.desk, with_media.lease, limit, with_media.store)


def packed(
    variables: dict[str, Any], limit: int, *, calls: bool = True
) -> tuple[dict[str, Any], int]:
    """What a template is given, as it goes to the renderer, and how many bytes it has. calls:
    whether there may be some in the messages.

    Raises InvalidRequest where they are more than the model's context of `limit` tokens can be
    worth, or than are ever accepted.
    """
    most = min(limit * MAX_CHARACTERS_PER_TOKEN, MAX_GIVEN_BYTES)
    raw: dict[str, Any] = {}
    sizes = {}
    told, places = with_texts(variables["messages"]) if calls else (variables["messages"], [])
    for name, value in {**variables, "messages": told}.items():
        try:
            written, as_msgpack = _written(value)
        except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
            continue  # It will be refused when it is sent, with a better complaint.
        sizes[name] = len(written)
        if sizes[name] > most:
            break
        if as_msgpack:
            raw[name] = msgspec.Raw(written)
    total = sum(sizes.values())
    if total > most:
        largest = max(sizes, key=lambda name: sizes[name])
        own = largest not in RESERVED
        where = f"chat_template_kwargs.{largest}" if own else largest
        raise InvalidRequest(
            f"the chat template is given {total} bytes, {sizes[largest]} of them in ",
            Field(where),
            f"; at most {most} are accepted with this model's context of {limit} tokens",
            param=where,
            code="context_length_exceeded",
        )
    if len(raw) < len(variables):
        return variables, total
    return {**raw, "messages": PackedMessages(raw["messages"], places)}, total


def _written(value: Any) -> tuple[bytes, bool]:
    """False: it is JSON, as integers of more than 64 bits are sent, and all beside them."""
    try:
        return msgspec.msgpack.encode(value), True
    except OverflowError:
        return msgspec.json.encode(value), False


def _of_field(error: InvalidRequest, variables: dict[str, Any]) -> InvalidRequest:
    """The error, which names the field where what it says is about one of the client's own
    variables."""
    name = (error.param or "").partition("[")[0]
    if name not in variables or name in RESERVED:
        return error
    return error.renamed(
        lambda path: f"chat_template_kwargs.{path}" if path == error.param else path
    )


def check_variables(kwargs: dict[str, Any] | None) -> None:
    """Raises InvalidRequest for chat_template_kwargs that are fields of their own."""
    taken = RESERVED.intersection(kwargs or ())
    if taken:
        raise InvalidRequest(
            f"chat_template_kwargs may not hold {', '.join(sorted(taken))}",
            param="chat_template_kwargs",
        )


def refuse_template(given: str | None) -> None:
    """A template is a program; only the operator may bring one."""
    if given is not None:
        raise InvalidRequest(
            "chat_template can't be set by a request; allowed: null (the server's operator sets it "
            "with --chat-template)",
            param="chat_template",
            code="unsupported_value",
        )


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ReasoningField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenRouter's `reasoning`. exclude: the thoughts are left out of the reply.  max_tokens: the
    most tokens that they may have.  summary: of OpenAI's Responses, without effect."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: int | None = None
    summary: str | None = None


class ThinkingSwitch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`thinking` of DeepSeek, GLM and Anthropic. budget_tokens: the most tokens that the thoughts
    may have, of a model that marks them with tokens of their own; without effect on others."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = None


class ThinkingRequest(Protocol):
    """A request with these fields."""

    @property
    def reasoning(self) -> ReasoningField | None: ...
    @property
    def thinking(self) -> ThinkingSwitch | bool | None: ...
    @property
    def enable_thinking(self) -> bool | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def include_reasoning(self) -> bool | None: ...
    @property
    def thinking_token_budget(self) -> int | None: ...
    @property
    def thinking_budget(self) -> int | None: ...
    @property
    def thinking_budget_tokens(self) -> int | None: ...


_SAID = attrgetter("reasoning", "thinking", "enable_thinking", "reasoning_effort")
_BUDGETS = attrgetter(
    "reasoning", "thinking_token_budget", "thinking_budget", "thinking_budget_tokens"
)
_NOTHING = (None,) * 4


def check_thinking(request: ThinkingRequest) -> None:
    """Raises InvalidRequest for an effort or a budget that there isn't, and fields that contradict
    one another."""
    if _SAID(request) == _NOTHING:
        return
    reasoning = request.reasoning
    given = {
        "reasoning_effort": request.reasoning_effort,
        "reasoning.effort": None if reasoning is None else reasoning.effort,
    }
    for field, effort in given.items():
        if effort is not None and effort not in EFFORTS:
            raise InvalidRequest(
                f"{field} is {clip(effort)}; allowed: {', '.join(EFFORTS)}", param=field
            )
    _refuse_contradiction(given)
    _refuse_contradiction(_switches(request))


def one_budget(request: ThinkingRequest) -> int | None:
    """The request's thinking_token_budget, whatever it calls it; None where it has none. Raises
    ValueError for two."""
    if _BUDGETS(request) == _NOTHING:
        return None
    reasoning = request.reasoning
    given = {
        FIELD: request.thinking_token_budget,
        "thinking_budget": request.thinking_budget,
        "thinking_budget_tokens": request.thinking_budget_tokens,
        "reasoning.max_tokens": None if reasoning is None else reasoning.max_tokens,
    }
    said = {field: budget for field, budget in given.items() if budget is not None}
    if len(set(said.values())) > 1:
        both = " and ".join(f"{field} is {budget}" for field, budget in said.items())
        raise ValueError(f"{both}; they mean the same: set only one of them")
    return next(iter(said.values()), None)


def thinking_variables(request: ThinkingRequest) -> dict[str, Any]:
    """Variables for the chat template. Qwen's and GLM's call the switch `enable_thinking`, those of
    DeepSeek and Granite `thinking`; a template ignores what it doesn't know."""
    variables: dict[str, Any] = {}
    if _SAID(request) == _NOTHING:
        return variables
    reasoning = request.reasoning
    effort = request.reasoning_effort or (None if reasoning is None else reasoning.effort)
    if effort is not None:
        variables["reasoning_effort"] = effort
    thinks = next((one for one in _switches(request).values() if one is not None), None)
    if thinks is not None:
        variables |= {"enable_thinking": thinks, "thinking": thinks}
    return variables


def shows_thoughts(request: ThinkingRequest) -> bool:
    """Whether the reply brings the model's thoughts."""
    reasoning = request.reasoning
    hidden = reasoning is not None and reasoning.exclude is True
    return request.include_reasoning is not False and not hidden


def _switches(request: ThinkingRequest) -> dict[str, bool | None]:
    """Whether the model is to think, by each field that says so; None: it says nothing."""
    reasoning, thinking = request.reasoning, request.thinking
    if isinstance(thinking, ThinkingSwitch):
        # A model that decides by itself is one that may think.
        thinking = None if thinking.type == "auto" else thinking.type != "disabled"
    enabled = effort = None
    if reasoning is not None:
        enabled = reasoning.enabled
        effort = False if reasoning.effort == "none" else None
    return {
        "enable_thinking": request.enable_thinking,
        "thinking": thinking,
        "reasoning.enabled": enabled,
        "reasoning.effort": effort,
    }


def _refuse_contradiction(given: dict[str, Any]) -> None:
    said = {field: value for field, value in given.items() if value is not None}
    first = next(iter(said), None)
    for field, value in said.items():
        if first is not None and value != said[first]:
            raise InvalidRequest(
                Field(first),
                " and ",
                Field(field),
                " contradict each other; send one of them",
                param=field,
            )
