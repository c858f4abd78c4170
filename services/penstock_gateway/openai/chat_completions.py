"""POST /v1/chat/completions."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock_gateway.openai.chat_reply import ChatCompletion, ChatFormat
from penstock_gateway.openai.chat_request import ChatRequest, check
from penstock_gateway.openai.endpoint import GenerateEndpoint, Job
from penstock_gateway.openai.messages import characters, template_messages
from penstock_gateway.openai.reply import ReplyHead
from penstock_gateway.openai.sampling import room_for_output, sampling_params
from penstock_gateway.openai.tokenising import encode
from penstock_gateway.operations import OperationRoute, posting
from penstock_gateway.service import Engine, Service

OPERATION = posting(
    "/v1/chat/completions", "Answer a conversation", ChatRequest, ChatCompletion, streams=True
)


class ChatCompletions(GenerateEndpoint[ChatRequest]):
    """One conversation in, n answers out."""

    request_type = ChatRequest
    id_prefix = "chatcmpl"

    def check(self, request: ChatRequest) -> None:
        check(request)

    async def prepare(self, request: ChatRequest, engine: Engine, head: ReplyHead) -> Job:
        limit = engine.welcome.limits.max_model_len
        prompt = await prompt_ids(request, engine)
        two = request.max_completion_tokens is not None
        max_tokens = room_for_output(
            len(prompt),
            request.max_completion_tokens if two else request.max_tokens,
            None,
            limit,
            field="max_completion_tokens" if two else "max_tokens",
            source="messages",
        )
        params = sampling_params(
            request,
            engine.welcome,
            max_tokens=max_tokens,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        )
        reply = ChatFormat(head, engine.text.tokenizer, logprobs=bool(request.logprobs))
        return Job([prompt], [params], reply)


def routes(service: Service) -> list[OperationRoute]:
    """The one route. The endpoint is a plain ASGI application: it holds response headers back, and
    watches the connection, which a handler that returns a response can't."""
    return [OPERATION.route(ChatCompletions(service))]


async def prompt_ids(request: ChatRequest, engine: Engine) -> list[int]:
    """The conversation through the model's chat template. Raises InvalidRequest."""
    template = engine.text.template
    if template is None:
        raise InvalidRequest(
            "this model has no chat template; use /v1/completions", code="no_chat_template"
        )
    limit = engine.welcome.limits.max_model_len
    # Each message costs a token at least.
    messages = template_messages(request.messages, limit)
    wants_opening = request.add_generation_prompt is not False
    kwargs = request.chat_template_kwargs or {}
    return await encode(
        lambda: template.encode(messages, add_generation_prompt=wants_opening, **kwargs),
        characters(messages),
        limit,
    )
