"""POST /v1/completions: its body, the prompts in it, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from penstock.errors import Field, InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.sampling_params import MAX_LOGPROBS, SamplingParams
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.completions.reply import CompletionSpec, TextCompletion
from penstock_gateway.completions.reply import Prompt as KnownPrompt
from penstock_gateway.fim.prompt import check_fim, fim_prompt
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import (
    EchoOptions,
    ReplyHead,
    check_listed,
    check_prompt_logprobs,
)
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_gateway.generate.search import check_search, search_of
from penstock_gateway.http.operations import SIGNED_HEADERS, OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.answer_form import blame, structure_field
from penstock_gateway.request.fields import (
    COMMON,
    Flag,
    GenerateFields,
    Text,
    UnsupportedField,
    Whole,
    check_unsupported,
)
from penstock_gateway.request.sampling import (
    check_ids,
    room_for_output,
    sampling_params,
    sequences_of,
    truncated,
)
from penstock_gateway.request.tokenising import encode, off_the_loop, predicted_ids
from penstock_gateway.service import Service

MAX_PROMPTS = 128
MAX_SEQUENCES = 1024
"""Prompts times n, in one request."""
DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]


class CompletionRequest(GenerateFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields besides those of GenerateFields.

    prompt: a text, a list of texts, a list of token ids, or a list of such lists.
    parse_special: whether special tokens in a prompt's text are parsed (Penstock's own).
    """

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: Whole = None
    add_special_tokens: Flag = None
    parse_special: Flag = None

    suffix: Text = None
    """What comes after the continuation: models that can fill in the middle see it."""
    prompt_embeds: Any = None


RULES = (*COMMON, UnsupportedField("prompt_embeds"))


def check(request: CompletionRequest) -> None:
    """Checks what needs no model. Raises InvalidRequest."""
    check_unsupported(request, RULES)
    check_prompt_logprobs(request)
    if request.searches:
        check_search(request)
    check_fim(request)
    check_listed(request, logprobs=request.logprobs is not None)
    count = request.logprobs
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"logprobs must be a whole number in [0, {MAX_LOGPROBS}], not {count}",
            param="logprobs",
        )


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The prompts in order, each a text or token ids, none empty. Raises InvalidRequest."""
    prompts = _as_list(request.prompt)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt has {len(prompts)} entries; at most {MAX_PROMPTS} are allowed",
            param="prompt",
        )
    n = request.best_of or (1 if request.n is None else request.n)
    if len(prompts) * n > MAX_SEQUENCES:
        raise InvalidRequest(
            f"{len(prompts)} prompts with ",
            Field("n"),
            f" = {n} make {len(prompts) * n} choices; at most {MAX_SEQUENCES} are allowed",
            param="n",
        )
    for position, prompt in enumerate(prompts):
        if not prompt:
            which = f"prompt[{position}]" if len(prompts) > 1 else "prompt"
            raise InvalidRequest(
                f"{which} is empty; it must have at least one token", param="prompt"
            )
    return prompts


def _as_list(prompt: str | list[str | int | list[int]] | None) -> list[Prompt]:
    if prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt", code="missing_required_parameter")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest(
            "prompt is an empty list; it must have at least one entry", param="prompt"
        )
    kind = type(prompt[0])
    if any(type(element) is not kind for element in prompt):
        raise InvalidRequest(
            "prompt mixes types; it must be a string, a list of strings, a list of token ids, or a "
            "list of lists of token ids",
            param="prompt",
            code="invalid_type",
        )
    if kind is int:
        return [cast("list[int]", prompt)]
    return cast("list[Prompt]", prompt)


OPERATION = posting(
    "/v1/completions",
    "Continue prompts",
    CompletionRequest,
    TextCompletion,
    streams=True,
    headers=SIGNED_HEADERS,
    traced_as="text_completion",
)


class Completions(GenerateEndpoint[CompletionRequest]):
    """Prompts in, n continuations of each out; choice index = prompt * n + sequence."""

    request_type = CompletionRequest
    reply_spec: type[ReplySpec] = CompletionSpec
    gives_receipts = True
    id_prefix = "cmpl-"
    replayable = True
    default_max_tokens = DEFAULT_MAX_TOKENS

    def check(self, request: CompletionRequest) -> None:
        check(request)

    async def prepare(
        self, request: CompletionRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        limits = engine.welcome.limits
        limit = limits.max_model_len
        sequences, many = sequences_of(request)
        given = prompts_of(request)
        prompt_token_ids = []
        for each in given:
            ids, request = await _with_suffix(each, request, engine)
            prompt_token_ids.append(truncated(ids, request, request.max_tokens, limit))
        own = engine.welcome.generation.max_new_tokens
        default = min(self.default_max_tokens, own or self.default_max_tokens)
        rooms = [
            room_for_output(
                len(ids),
                request.max_tokens,
                default,
                limits,
                field="max_tokens",
                source="prompt",
                sequences=sequences,
                many=many,
                oversized=engine.config.oversized_max_tokens,
            )
            for ids in prompt_token_ids
        ]
        params = for_rooms(
            rooms,
            lambda room: sampling_params(
                request,
                engine.welcome,
                max_tokens=room,
                logprobs=request.logprobs,
                prompt_logprobs=_prompt_logprobs(request),
            ),
        )
        echo_options = EchoOptions.of(request, logprobs=request.logprobs is not None)
        tokenizer = engine.text.tokenizer
        known = [
            KnownPrompt(
                ids if echo_options.prompt else [], await _echoed(text, ids, request, tokenizer)
            )
            for text, ids in zip(given, prompt_token_ids, strict=True)
        ]
        reply = CompletionSpec(echo_options, known, params[0].n)
        blamed = partial(blame, field=structure_field(request))
        prediction = await predicted_ids(request.prediction, engine)
        search = search_of(request) if request.searches else None
        return PreparedRequest(
            prompt_token_ids, params, reply, blamed, search, prediction=prediction
        )


def for_rooms(rooms: Sequence[int], made: Callable[[int], SamplingParams]) -> list[SamplingParams]:
    """Sampling parameters of each prompt, all alike but for max_tokens: made once, as a grammar or
    token ids in them may be many. rooms: tokens of output of each prompt."""
    first, *others = dict.fromkeys(rooms)
    params = made(first)
    by_room = {first: params} | {room: params.with_max_tokens(room) for room in others}
    return [by_room[room] for room in rooms]


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """An echo shows as many alternatives as the answer."""
    counts = [request.prompt_logprobs, request.logprobs if request.echo else None]
    return max((count for count in counts if count is not None), default=None)


async def _echoed(
    given: Prompt, prompt_token_ids: list[int], request: CompletionRequest, tokenizer: Tokenizer
) -> str:
    """What an echo of the prompt begins with: the text as it came, unless it was cut."""
    if not request.echo:
        return ""
    if isinstance(given, str) and request.truncate_prompt_tokens is None:
        return given
    return await off_the_loop(
        lambda: tokenizer.decode(prompt_token_ids, skip_special_tokens=False),
        len(prompt_token_ids),
    )


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(Completions(service))]


async def _with_suffix(
    prompt: Prompt, request: CompletionRequest, engine: EngineInfo
) -> tuple[list[int], CompletionRequest]:
    if not request.suffix:
        return await token_ids_of(prompt, request, engine), request
    if not isinstance(prompt, str):
        check_ids("prompt", prompt, engine.welcome.limits.vocab_size)
    return await fim_prompt(
        prompt,
        request.suffix,
        request,
        engine,
        parse_special=bool(request.parse_special),
        add_special=request.add_special_tokens is not False,
    )


async def token_ids_of(prompt: Prompt, request: CompletionRequest, engine: EngineInfo) -> list[int]:
    """A prompt's token ids. Raises InvalidRequest for ids that the model doesn't have."""
    if not isinstance(prompt, str):
        check_ids("prompt", prompt, engine.welcome.limits.vocab_size)
        return prompt
    tokenizer, limit = engine.text.tokenizer, engine.welcome.limits.max_model_len
    cut = request.truncate_prompt_tokens is not None
    begins = request.truncation_side == "right"
    return await encode(
        lambda most: tokenizer.encode(
            prompt,
            most=None if cut else most,
            first=limit if cut and begins else None,
            last=limit if cut and not begins else None,
            parse_special=request.parse_special is not False,
            add_special=request.add_special_tokens is not False,
        ),
        len(prompt),
        limit,
    )
