"""Requests to pooling models, as the library makes them of prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from penstock.client.late_interaction import Role
from penstock.client.pool_request import PoolResult, check_input, check_task, pooling_model
from penstock.client.pooling_inputs import (
    PoolInput,
    check_pictures,
    conversation_template,
    ids_input,
    limit_of,
    media_input,
    picture_input,
    refuse_cut,
    refuse_instruction,
    text_input,
)
from penstock.errors import InvalidRequest, Overloaded
from penstock.llm.media_prompts import LibraryPrompt, library_chat, library_prompt
from penstock.llm.prompts import Prompt, with_salt
from penstock.llm.sounds_given import (
    has_media,
    kind_of_part,
    processor_changes,
    source_of_part,
    sources_of,
)
from penstock.media.desk import MediaDesk, not_taken
from penstock.media.item_names import PreparedItems
from penstock.media.sources import MediaSource
from penstock.protocol.common import Pooling, PoolingTask
from penstock.protocol.to_frontend import Welcome
from penstock.request.pooling_params import (
    PoolingParams,
    check_dimensions,
    check_input_type,
    default_task,
)
from penstock.request.terms import Terms

if TYPE_CHECKING:
    from penstock.client import EngineClient, ModelText

Scored = str | Sequence[str] | Mapping[str, Any]
"""What `score` takes for either side."""
MAX_WAIT = 5.0
"""Most seconds between two tries."""


@dataclass(frozen=True, slots=True)
class PoolJob:
    """One request, checked. sources: its media, which are prepared when it is about to run.
    finish: makes the input of them; without any it is `given`.  changes: how they are prepared,
    beyond the model's own way."""

    given: PoolInput
    pooling: Pooling
    terms: Terms
    sources: tuple[MediaSource, ...] = ()
    finish: Callable[[PreparedItems], PoolInput] = picture_input
    changes: dict[str, Any] | None = None


class Started(Protocol):
    """What AsyncLLM has."""

    @property
    def text(self) -> ModelText: ...

    @property
    def welcome(self) -> Welcome: ...

    @property
    def window(self) -> int: ...

    @property
    def _desk(self) -> MediaDesk: ...

    def _started(self) -> EngineClient: ...


async def pooled(client: EngineClient, desk: MediaDesk, job: PoolJob, name: str) -> PoolResult:
    """Prepares the job's media, if it has some, and runs it."""
    with desk.lease(job.terms.tenant, job.terms.deadline) as lease:
        given = job.given
        if job.sources:
            facts = client.welcome.media if client.welcome is not None else None
            items = await desk.prepare(facts, job.sources, lease, job.changes)
            if items is not None:
                given = job.finish(items)
        result = await client.pool(
            given.prompt_token_ids, job.pooling, name=name, terms=job.terms, media=given.media
        )
        return given.result(result)


async def run_job(llm: Started, job: PoolJob, name: str) -> PoolResult:
    """Waits and tries again while the engine has no room."""
    while True:
        try:
            return await pooled(llm._started(), llm._desk, job, name)
        except Overloaded as refusal:
            left = job.terms.time_left_ms(time.monotonic())
            wait = max(0.05, min(refusal.retry_after, MAX_WAIT))
            await asyncio.sleep(wait if left is None else min(wait, left / 1000))


def jobs_for(
    llm: Started,
    prompts: list[Prompt],
    params: PoolingParams,
    task: PoolingTask | None,
    terms: Terms,
) -> list[PoolJob]:
    """Checked and tokenised. task: the method's own. Raises InvalidRequest."""
    welcome, text = llm.welcome, llm.text
    pooling = pooling_model(welcome)
    if task is not None and params.task not in (None, task):
        raise InvalidRequest(f"task is {params.task}; this method's is {task}", param="task")
    wanted = task or params.task or default_task(welcome.pooling_tasks)
    check_task(wanted, welcome)
    check_dimensions(params.dimensions, pooling)
    check_input_type(params.input_type, pooling)
    role: Role = params.input_type or "document"
    limit = limit_of(params.truncate_prompt_tokens, welcome)
    asked = Pooling(
        wanted,
        dimensions=params.dimensions,
        normalize=params.normalize,
        activate=params.use_activation,
    )
    return [
        _media_job(prompt, text, welcome, asked, limit, with_salt(prompt, terms))
        if has_media(prompt)
        else job_of(_read(prompt, text, welcome, limit, role), asked, with_salt(prompt, terms))
        for prompt in prompts
    ]


def pair_jobs(
    pairs: Sequence[tuple[Prompt, Prompt]],
    text: ModelText,
    welcome: Welcome,
    *,
    limit: int | None,
    asked: Pooling,
    instruction: str | None,
) -> list[PoolJob]:
    """A cross-encoder's, of what it reads together. Raises InvalidRequest."""
    template = conversation_template(welcome)
    if template is None:
        if pooling_model(welcome).template is None:
            refuse_instruction(instruction)
        return [
            job_of(
                text_input(
                    text_of(query),
                    text_of(document),
                    text.tokenizer,
                    welcome,
                    limit=limit,
                    instruction=instruction,
                ),
                asked,
                Terms(),
            )
            for query, document in pairs
        ]
    refuse_cut(limit)
    jobs = []
    for query, document in pairs:
        opening, between = template.opening(instruction), template.document
        content: str | list[dict[str, Any]]
        if isinstance(query, str) and isinstance(document, str):
            # Nothing stands between them; in a chat, texts without a picture are lines.
            content = f"{opening}{query}{between}{document}"
        else:
            content = [_said(opening), _part(query), _said(between), _part(document)]
        jobs.append(conversation_job(content, template.system, text, welcome, asked))
    return jobs


def alone_jobs(
    prompts: Sequence[Prompt],
    text: ModelText,
    welcome: Welcome,
    *,
    limit: int | None,
    instruction: str | None,
) -> list[PoolJob] | None:
    """Jobs for vectors of a decoder that sees: each prompt as a conversation, if any of them is
    more than a text, or there is an instruction. None where they are prompts like others. Raises
    InvalidRequest."""
    sees = welcome.media is not None and not welcome.media.alone
    if not sees or (instruction is None and all(isinstance(each, str) for each in prompts)):
        refuse_instruction(instruction)
        return None
    refuse_cut(limit)
    asked = Pooling("embed")
    return [
        conversation_job([_part(each)], instruction or "", text, welcome, asked) for each in prompts
    ]


def conversation_job(
    content: str | list[dict[str, Any]],
    system: str,
    text: ModelText,
    welcome: Welcome,
    asked: Pooling,
) -> PoolJob:
    """A user's message, after a system message unless that is empty, in the model's own format,
    with the answer opened. Raises InvalidRequest."""
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": content})
    return _job_of_prompt(
        library_chat(messages, text, add_generation_prompt=True), welcome, asked, Terms()
    )


def _said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _part(prompt: Prompt) -> dict[str, Any]:
    """What `scored_inputs` found, as a part of a chat."""
    if isinstance(prompt, str):
        return _said(prompt)
    ((kind, given),) = cast("dict[str, Any]", prompt)["multi_modal_data"].items()
    return {"type": kind, kind: given}


def _media_job(
    prompt: Any,
    text: ModelText,
    welcome: Welcome,
    asked: Pooling,
    limit: int | None,
    terms: Terms,
) -> PoolJob:
    """The job of a prompt with media. Raises InvalidRequest."""
    if welcome.media is None or welcome.media.alone:
        return _picture_job(prompt, welcome, asked, terms)
    refuse_cut(limit)
    return _job_of_prompt(library_prompt(prompt, text), welcome, asked, terms)


def _job_of_prompt(found: LibraryPrompt, welcome: Welcome, asked: Pooling, terms: Terms) -> PoolJob:
    if found.finish is None:
        check_input(found.prompt_token_ids, welcome, cut=False)

    def finish(items: PreparedItems) -> PoolInput:
        if found.finish is None:
            return PoolInput(found.prompt_token_ids)
        return media_input(found.finish(items), welcome)

    given = PoolInput(found.prompt_token_ids)
    return PoolJob(given, asked, terms, found.sources, finish, found.changes)


def _picture_job(prompt: Any, welcome: Welcome, asked: Pooling, terms: Terms) -> PoolJob:
    """The job of a prompt that is one picture, without any text. Raises InvalidRequest."""
    facts = check_pictures(welcome)
    sources = sources_of(prompt)
    for source in sources:
        if source.kind not in facts.kinds:
            raise not_taken(source, facts)
    if len(sources) != 1 or prompt.get("prompt") or prompt.get("prompt_token_ids"):
        raise InvalidRequest(
            f"a prompt has {len(sources)} pictures and may have text beside them; an input is a "
            'text, or one picture with the prompt ""'
        )
    token = [own.token_id for own in facts.kinds.values()]
    changes = processor_changes(prompt)
    return PoolJob(PoolInput(token), asked, terms, (sources[0],), changes=changes)


def _read(
    prompt: Prompt, text: ModelText, welcome: Welcome, limit: int | None, role: Role
) -> PoolInput:
    fields: dict[str, Any] = dict(prompt) if isinstance(prompt, dict) else {"prompt": prompt}
    if isinstance(fields.get("prompt"), str):
        if not fields["prompt"]:
            raise InvalidRequest("the prompt is empty; it must hold at least one character")
        return text_input(fields["prompt"], None, text.tokenizer, welcome, limit=limit, role=role)
    ids = fields.get("prompt_token_ids")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise InvalidRequest(
            "a prompt must be a string, {'prompt': text} or {'prompt_token_ids': [ids]}, "
            f"not {str(prompt)[:80]!r}"
        )
    return ids_input(ids, welcome, limit=limit)


def job_of(given: PoolInput, asked: Pooling, terms: Terms) -> PoolJob:
    return PoolJob(given, given.asked(asked), terms)


def scored_inputs(value: Scored) -> list[Prompt]:
    """What `score` compares: texts, or parts as chats have them. Raises InvalidRequest."""
    if isinstance(value, Mapping):
        parts = value.get("content")
        if not isinstance(parts, (list, tuple)) or not parts:
            raise InvalidRequest('score takes texts, or {"content": [parts]}')
        return [_of_part(part, f"content[{place}]") for place, part in enumerate(parts)]
    texts = [value] if isinstance(value, str) else list(value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"score takes texts that aren't empty, not {str(text)[:80]!r}")
    if not texts:
        raise InvalidRequest("score was given no text")
    return [*texts]


def _of_part(part: Any, where: str) -> Prompt:
    kind = kind_of_part(part)
    if kind is not None:
        source_of_part(part, where)  # Raises its error.
        given = part.get("image_url" if part["type"] == "input_image" else part["type"])
        given = given.get("url") if isinstance(given, Mapping) else given
        return {"prompt": "", "multi_modal_data": {kind: given}}
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"{where} is neither a text nor a picture: {str(part)[:80]!r}")
    return text


def text_of(prompt: Prompt) -> str:
    """Raises InvalidRequest for one with a picture."""
    if isinstance(prompt, str):
        return prompt
    raise InvalidRequest("this model scores texts only; it reads both together")
