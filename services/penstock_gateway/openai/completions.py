"""POST /v1/completions."""

from __future__ import annotations

from penstock_gateway.openai.completion_reply import CompletionFormat, TextCompletion
from penstock_gateway.openai.completion_request import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
    Prompt,
    check,
    prompts_of,
)
from penstock_gateway.openai.endpoint import GenerateEndpoint, Job
from penstock_gateway.openai.reply import ReplyHead
from penstock_gateway.openai.sampling import check_ids, room_for_output, sampling_params
from penstock_gateway.openai.tokenising import encode
from penstock_gateway.operations import OperationRoute, posting
from penstock_gateway.service import Engine, Service

OPERATION = posting(
    "/v1/completions", "Continue prompts", CompletionRequest, TextCompletion, streams=True
)


class Completions(GenerateEndpoint[CompletionRequest]):
    """Prompts in, n continuations of each out; choice index = prompt * n + sequence."""

    request_type = CompletionRequest
    id_prefix = "cmpl"

    def check(self, request: CompletionRequest) -> None:
        check(request)

    async def prepare(self, request: CompletionRequest, engine: Engine, head: ReplyHead) -> Job:
        limit = engine.welcome.limits.max_model_len
        prompts = [await prompt_ids(p, request, engine) for p in prompts_of(request)]
        rooms = [
            room_for_output(
                len(prompt),
                request.max_tokens,
                DEFAULT_MAX_TOKENS,
                limit,
                field="max_tokens",
                source="prompt",
            )
            for prompt in prompts
        ]
        by_room = {
            room: sampling_params(
                request, engine.welcome, max_tokens=room, logprobs=request.logprobs
            )
            for room in set(rooms)
        }
        reply = CompletionFormat(head, engine.text.tokenizer, logprobs=request.logprobs is not None)
        return Job(prompts, [by_room[room] for room in rooms], reply)


def routes(service: Service) -> list[OperationRoute]:
    """The one route. The endpoint is a plain ASGI application: it holds response headers back, and
    watches the connection, which a handler that returns a response can't."""
    return [OPERATION.route(Completions(service))]


async def prompt_ids(prompt: Prompt, request: CompletionRequest, engine: Engine) -> list[int]:
    """A prompt's token ids. Raises InvalidRequest for ids that the model doesn't have."""
    if not isinstance(prompt, str):
        check_ids("prompt", prompt, engine.welcome.limits.vocab_size)
        return prompt
    tokenizer = engine.text.tokenizer
    return await encode(
        lambda: tokenizer.encode(
            prompt,
            parse_special=request.parse_special is not False,
            add_special=request.add_special_tokens is not False,
        ),
        len(prompt),
        engine.welcome.limits.max_model_len,
    )
