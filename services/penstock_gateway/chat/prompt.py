"""A conversation through the model's chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import Field, InvalidRequest
from penstock.media.budget import MediaLease
from penstock.media.desk import MediaDesk
from penstock.media.item_names import PromptMedia
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
    messages, places = with_texts(variables["messages"]) if calls else (variables["messages"], [])
    for name, value in {**variables, "messages": messages}.items():
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
    """False: it is JSON, as integers of more than 64 bits are sent, and all besides them."""
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
