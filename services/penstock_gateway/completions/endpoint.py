"""POST /v1/completions."""

from __future__ import annotations

from functools import partial

from penstock.media.budget import MediaLease
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.completions.reply import CompletionFormat, TextCompletion
from penstock_gateway.completions.reply import Prompt as KnownPrompt
from penstock_gateway.completions.request import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
    Prompt,
    check,
    prompts_of,
)
from penstock_gateway.generate.beam_search import search_of
from penstock_gateway.generate.endpoint import GenerateEndpoint, Job
from penstock_gateway.generate.reply import EchoOptions, ReplyHead
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.sampling import (
    blame,
    check_ids,
    room_for_output,
    sampling_params,
    sequences_of,
    structure_field,
    truncated,
)
from penstock_gateway.request.tokenising import encode, off_the_loop, predicted_ids
from penstock_gateway.service import Service

OPERATION = posting(
    "/v1/completions",
    "Continue prompts",
    CompletionRequest,
    TextCompletion,
    streams=True,
    traced_as="text_completion",
)


class Completions(GenerateEndpoint[CompletionRequest]):
    """Prompts in, n continuations of each out; choice index = prompt * n + sequence."""

    request_type = CompletionRequest
    id_prefix = "cmpl-"
    default_max_tokens = DEFAULT_MAX_TOKENS

    def check(self, request: CompletionRequest) -> None:
        check(request)

    async def prepare(
        self, request: CompletionRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> Job:
        limits = engine.welcome.limits
        limit = limits.max_model_len
        sequences, many = sequences_of(request)
        given = prompts_of(request)
        prompt_token_ids = [
            truncated(await token_ids_of(p, request, engine), request, request.max_tokens, limit)
            for p in given
        ]
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
        by_room = {
            room: sampling_params(
                request,
                engine.welcome,
                max_tokens=room,
                logprobs=request.logprobs,
                prompt_logprobs=_prompt_logprobs(request),
            )
            for room in set(rooms)
        }
        echo_options = EchoOptions.of(request, logprobs=request.logprobs is not None)
        tokenizer = engine.text.tokenizer
        known = [
            KnownPrompt(ids, await _echoed(text, ids, request, tokenizer))
            for text, ids in zip(given, prompt_token_ids, strict=True)
        ]
        params = [by_room[room] for room in rooms]
        reply = CompletionFormat(head, tokenizer, echo_options, known, params[0].n)
        blamed = partial(blame, field=structure_field(request))
        prediction = await predicted_ids(request.prediction, engine)
        return Job(
            prompt_token_ids, params, reply, blamed, search_of(request), prediction=prediction
        )


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


async def token_ids_of(prompt: Prompt, request: CompletionRequest, engine: EngineInfo) -> list[int]:
    """A prompt's token ids. Raises InvalidRequest for ids that the model doesn't have."""
    if not isinstance(prompt, str):
        check_ids("prompt", prompt, engine.welcome.limits.vocab_size)
        return prompt
    tokenizer, limit = engine.text.tokenizer, engine.welcome.limits.max_model_len
    cut = request.truncate_prompt_tokens is not None
    return await encode(
        lambda most: tokenizer.encode(
            prompt,
            most=None if cut else most,
            last=limit if cut else None,
            parse_special=request.parse_special is not False,
            add_special=request.add_special_tokens is not False,
        ),
        len(prompt),
        limit,
    )
