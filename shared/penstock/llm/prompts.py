"""What a caller may give as a prompt, and how it becomes token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypeAlias, TypedDict, cast

import msgspec

from penstock.client.served_model import ModelText
from penstock.errors import InvalidRequest
from penstock.llm.encoder_decoder import joined
from penstock.llm.sounds_given import PARTS, kind_of_part, source_of_part
from penstock.media.desk import not_taken
from penstock.media.sources import MediaSource
from penstock.media.words import WORDS
from penstock.model.prepared_model import GenerationDefaults
from penstock.parsing.written_calls import writer_of
from penstock.protocol.common import SessionTerms
from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms
from penstock.text.call_arguments import written_arguments
from penstock.text.template import ChatTemplate, RenderedChat
from penstock.text.template_shape import Marks, media_part, shaped, stand_ins


class _Extras(TypedDict):
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[Mapping[str, Any]]
    multi_modal_uuids: NotRequired[Mapping[str, Any]]
    mm_processor_kwargs: NotRequired[Mapping[str, Any]]


class TokensPrompt(_Extras):
    """A prompt that is tokenised already. multi_modal_data: its media, for each of which it has a
    placeholder."""

    prompt_token_ids: list[int]


class TextPrompt(_Extras):
    """A prompt as text. Special tokens in it are parsed, and so are the placeholders of its
    media."""

    prompt: str


class EncoderDecoderPrompt(TypedDict):
    """Both halves of a prompt for an encoder-decoder model: the encoder's input, and the beginning
    of the decoder's text."""

    encoder_prompt: TextPrompt
    decoder_prompt: str | list[int] | TokensPrompt | TextPrompt


Prompt: TypeAlias = str | list[int] | TokensPrompt | TextPrompt | EncoderDecoderPrompt
Message: TypeAlias = dict[str, Any]

PROMPT_FIELDS = (
    "prompt",
    "prompt_token_ids",
    "cache_salt",
    "multi_modal_data",
    "multi_modal_uuids",
    "mm_processor_kwargs",
)
ROLES = ("system", "developer", "user", "assistant", "tool")


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list. A list of token ids is one prompt."""
    if isinstance(prompts, (str, dict)):
        return [cast(Prompt, prompts)]
    if not isinstance(prompts, (list, tuple)):
        return [cast(Prompt, prompts)]  # which tokenise_prompt refuses, and says why
    if prompts and all(isinstance(one, int) for one in prompts):
        return [cast(Prompt, prompts)]
    return cast(list[Prompt], list(prompts))


def conversation_list(messages: list[Message] | list[list[Message]]) -> list[list[Message]]:
    """One conversation or several, as a list. Raises InvalidRequest when there is none."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequest("messages is empty; it must have at least one message message")
    if isinstance(messages[0], dict):
        return [list(messages)]
    return [list(conversation) for conversation in messages]


def params_list(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> list[SamplingParams]:
    """One SamplingParams for all prompts, or one each. Raises InvalidRequest."""
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, (list, tuple)):
        raise InvalidRequest(f"sampling params must be SamplingParams, not {params!r}")
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
    priority: Sequence[int] | None,
    deadline_ms: float | None,
    count: int,
    session: SessionTerms | None = None,
) -> list[Terms]:
    """Terms for each prompt. priority: one value each, or None. Raises InvalidRequest."""
    values = [0] * count if priority is None else list(priority)
    if len(values) != count:
        raise InvalidRequest(
            f"there are {count} prompts and {len(values)} priorities; give one for each",
            param="priority",
        )
    return [
        Terms.checked(priority=value, deadline_ms=deadline_ms, session=session) for value in values
    ]


def with_salt(prompt: Prompt, terms: Terms) -> Terms:
    """The terms of a prompt that may bring a cache salt. Raises InvalidRequest."""
    whole: Any = joined(prompt)
    salt = whole.get("cache_salt", "") if isinstance(whole, dict) else ""
    checked = Terms.checked(cache_salt=salt)
    return msgspec.structs.replace(terms, cache_salt=checked.cache_salt)


def tokenise_prompt(prompt: Prompt, text: ModelText) -> tuple[str | None, list[int]]:
    """(the text where there is one, token ids). Raises InvalidRequest."""
    if isinstance(prompt, str):
        return _tokenise_text(prompt, text)
    if isinstance(prompt, (list, tuple)):
        return None, _checked_ids(prompt)
    fields: dict[str, Any] = dict(prompt) if isinstance(prompt, dict) else {}
    unknown = fields.keys() - PROMPT_FIELDS
    if unknown:
        raise InvalidRequest(
            f"a prompt has no field {sorted(unknown)[0]!r}; there are {', '.join(PROMPT_FIELDS)}"
        )
    if fields.get("prompt_token_ids") is not None:
        words = fields.get("prompt")
        return words if isinstance(words, str) else None, _checked_ids(fields["prompt_token_ids"])
    if isinstance(fields.get("prompt"), str):
        return _tokenise_text(fields["prompt"], text)
    raise InvalidRequest(
        "a prompt must be a string, {'prompt': text} or {'prompt_token_ids': [ids]}, "
        f"not {str(prompt)[:80]!r}"
    )


def tokenise_chat(
    messages: list[Message],
    text: ModelText,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation in the model's template; see fill_chat."""
    return fill_chat(
        messages,
        text,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
    ).encode(None)


def fill_chat(
    messages: list[Message],
    text: ModelText,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> RenderedChat:
    """A conversation in the model's template, as text and as ids. Raises InvalidRequest.

    continue_final_message: nothing follows the last message's content, so that the model continues
    it.  variables: further template variables (tools, enable_thinking, …).
    """
    return fill_with_media(
        messages,
        text,
        None,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
    )[0]


def fill_with_media(
    messages: list[Message],
    text: ModelText,
    sources: list[MediaSource] | None,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> tuple[RenderedChat, Marks]:
    """The conversation as fill_chat gives it, and what stands for media in the filled template,
    where that takes no parts. sources: gains the media, in order."""
    marks = stand_ins()
    template, plain = _conversation(messages, text, variables, sources, marks)
    filled = template.filled(
        plain,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        **(variables or {}),
    )
    return filled, marks


def render_chat(
    messages: list[Message],
    text: ModelText,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The conversation as text, for people to look at. Raises InvalidRequest."""
    template, plain = _conversation(messages, text, variables, None, stand_ins())
    return template.render(
        plain,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        **(variables or {}),
    )


def with_template(text: ModelText, source: str | None, generation: GenerationDefaults) -> ModelText:
    """`text` with another chat template, where one is given. Raises UnsupportedModel."""
    if source is None:
        return text
    template = ChatTemplate(source, text.tokenizer, generation=generation)
    return ModelText(text.tokenizer, template, text.media)


def _conversation(
    messages: list[Message],
    text: ModelText,
    variables: Mapping[str, Any] | None,
    sources: list[MediaSource] | None,
    marks: Marks,
) -> tuple[ChatTemplate, list[Message]]:
    if text.template is None:
        raise InvalidRequest("this model has no chat template; use generate with a prompt")
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequest("messages is empty; it must have at least one message message")
    taken = sorted(
        {"messages", "add_generation_prompt", "continue_final_message"} & (variables or {}).keys()
    )
    if taken:
        raise InvalidRequest(f"chat_template_kwargs can't set {taken[0]!r}")
    found: list[MediaSource] = []
    plain = [
        _plain_message(message, f"messages[{place}]", found)
        for place, message in enumerate(messages)
    ]
    for source in found:
        if text.media is None or source.kind not in text.media.kinds:
            raise not_taken(source, text.media)
        if sources is None:
            raise InvalidRequest(
                f"{source.where} is a {WORDS[source.kind]}; media are not supported here"
            )
    if sources is not None:
        sources += found
    plain = text.template.arranged(plain, writer_of("auto", text.template.source))
    if text.media is not None:
        plain = shaped(plain, text.template.content_shape(), marks)
    return text.template, plain


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


def _plain_message(message: Any, where: str, sources: list[MediaSource]) -> Message:
    """The message with its content as templates take it: one text, or a list of parts where there
    are media. Raises InvalidRequest."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise InvalidRequest(f"a message's role must be one of {', '.join(ROLES)}, not {role!r}")
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        content = _content(content, where, sources)
    if content is not None and not isinstance(content, (str, list)):
        kind = type(content).__name__
        raise InvalidRequest(f"{where}.content is a {kind}; allowed: text, a list of parts, None")
    if message["role"] == "user" and (not isinstance(content, (str, list)) or not content):
        raise InvalidRequest("a user message's content must be text that is not empty")
    plain = {**message, "content": content or ""}
    if isinstance(message.get("tool_calls"), (list, tuple)):
        plain["tool_calls"] = [_with_arguments(call) for call in message["tool_calls"]]
    return plain


def _with_arguments(call: Any) -> Any:
    """A call whose arguments are a JSON text, as in OpenAI's API, with the object that templates
    take."""
    function = call.get("function") if isinstance(call, dict) else None
    text = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(text, str):
        return call
    return {**call, "function": {**function, "arguments": written_arguments(text)}}


def _content(
    parts: Sequence[Any], where: str, sources: list[MediaSource]
) -> str | list[dict[str, Any]]:
    if not any(kind_of_part(part) for part in parts):
        return "\n".join(_part_text(part) for part in parts)
    content: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        kind = kind_of_part(part)
        if kind is not None:
            sources.append(source_of_part(part, f"{where}.content[{place}]"))
            content.append(media_part(kind))
        else:
            content.append({"type": "text", "text": _part_text(part)})
    return content


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequest(
            "a message's content is text or a list of {'type': 'text', 'text': …} and parts of "
            f"media ({', '.join(PARTS)}), so not {kind or str(part)[:80]!r}"
        )
    return str(part["text"])
