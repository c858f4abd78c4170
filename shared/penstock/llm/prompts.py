"""What a caller may give as a prompt, and how it becomes token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypeAlias, TypedDict, cast

import msgspec

from penstock.client.model_text import ModelText
from penstock.errors import InvalidRequest
from penstock.sampling_params import SamplingParams
from penstock.terms import Terms


class TokensPrompt(TypedDict):
    """A prompt that is tokenised already."""

    prompt_token_ids: list[int]
    cache_salt: NotRequired[str]


class TextPrompt(TypedDict):
    """A prompt as text; special tokens in it are parsed."""

    prompt: str
    cache_salt: NotRequired[str]


Prompt: TypeAlias = str | TokensPrompt | TextPrompt
Message: TypeAlias = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    return list(prompts)


def conversation_list(messages: list[Message] | list[list[Message]]) -> list[list[Message]]:
    """One conversation or several, as a list. Raises InvalidRequest when there is none."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequest("messages is empty; it must hold at least one message")
    if isinstance(messages[0], dict):
        return [list(cast(list[Message], messages))]
    return [list(conversation) for conversation in cast(list[list[Message]], messages)]


def params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """One SamplingParams for all prompts, or one each. Raises InvalidRequest."""
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    result = list(params)
    if len(result) != count:
        raise InvalidRequest(
            f"there are {count} prompts and {len(result)} sampling params; "
            "give one for all, or one for each"
        )
    for item in result:
        if not isinstance(item, SamplingParams):
            raise InvalidRequest(f"sampling params must be SamplingParams, not {item!r}")
    return result


def terms_list(
    priority: Sequence[int] | None, deadline_ms: float | None, count: int
) -> list[Terms]:
    """Terms for each prompt. priority: one value each, or None. Raises InvalidRequest."""
    values = [0] * count if priority is None else list(priority)
    if len(values) != count:
        raise InvalidRequest(
            f"there are {count} prompts and {len(values)} priorities; give one for each",
            param="priority",
        )
    return [Terms.checked(priority=value, deadline_ms=deadline_ms) for value in values]


def with_salt(prompt: Prompt, terms: Terms) -> Terms:
    """The terms of a prompt that may bring a cache salt. Raises InvalidRequest."""
    salt = prompt.get("cache_salt", "") if isinstance(prompt, dict) else ""
    checked = Terms.checked(cache_salt=salt)
    return msgspec.structs.replace(terms, cache_salt=checked.cache_salt)


def tokenise_prompt(prompt: Prompt, text: ModelText) -> tuple[str | None, list[int]]:
    """(the text where there is one, token ids). Raises InvalidRequest."""
    if isinstance(prompt, str):
        return _tokenise_text(prompt, text)
    fields: dict[str, Any] = dict(prompt) if isinstance(prompt, dict) else {}
    if isinstance(fields.get("prompt"), str):
        return _tokenise_text(fields["prompt"], text)
    if "prompt_token_ids" in fields:
        return None, _checked_ids(fields["prompt_token_ids"])
    raise InvalidRequest(
        "a prompt must be a string, {'prompt': text} or {'prompt_token_ids': [ids]}, "
        f"not {str(prompt)[:80]!r}"
    )


def tokenise_chat(
    messages: list[Message], text: ModelText, *, add_generation_prompt: bool
) -> list[int]:
    """Token ids of a conversation in the model's template. Raises InvalidRequest."""
    if text.template is None:
        raise InvalidRequest("this model has no chat template; use generate with a prompt")
    if not messages:
        raise InvalidRequest("messages is empty; it must hold at least one message")
    for message in messages:
        _check_message(message)
    return text.template.encode(messages, add_generation_prompt=add_generation_prompt)


def _tokenise_text(prompt: str, text: ModelText) -> tuple[str, list[int]]:
    if not prompt:
        raise InvalidRequest("the prompt is empty; it must hold at least one character")
    return prompt, text.tokenizer.encode(prompt)


def _checked_ids(ids: Any) -> list[int]:
    if not isinstance(ids, (list, tuple)) or not ids:
        raise InvalidRequest("prompt_token_ids is empty; it must be a list of token ids")
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise InvalidRequest(f"prompt_token_ids must hold whole numbers, not {token!r}")
    return list(ids)


def _check_message(message: Any) -> None:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise InvalidRequest(f"a message's role must be one of {', '.join(ROLES)}, not {role!r}")
    content = message.get("content")
    if message["role"] == "user" and (not isinstance(content, str) or not content):
        raise InvalidRequest("a user message's content must be text that is not empty")
