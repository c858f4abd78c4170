"""POST /v1/chat/completions."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock_gateway.openai.chat_reply import ChatFormat
from penstock_gateway.openai.chat_request import ChatRequest, check
from penstock_gateway.openai.endpoint import GenerateEndpoint, Job
from penstock_gateway.openai.messages import characters, template_messages
from penstock_gateway.openai.reply import ReplyHead
from penstock_gateway.openai.sampling import room_for_output, sampling_params, truncated
from penstock_gateway.openai.search import search_of
from penstock_gateway.openai.shown import Shown
from penstock_gateway.openai.structure import structure_field
from penstock_gateway.openai.tokenising import encode
from penstock_gateway.service import Engine


class ChatCompletions(GenerateEndpoint[ChatRequest]):
    """One conversation in, n answers out."""

    request_type = ChatRequest
    id_prefix = "chatcmpl"

    def check(self, request: ChatRequest) -> None:
        check(request)

    async def prepare(self, request: ChatRequest, engine: Engine, head: ReplyHead) -> Job:
        limit = engine.welcome.limits.max_model_len
        two = request.max_completion_tokens is not None
        wanted = request.max_completion_tokens if two else request.max_tokens
        prompt = truncated(await prompt_ids(request, engine), request, wanted, limit)
        max_tokens = room_for_output(
            len(prompt),
            wanted,
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
            prompt_logprobs=request.prompt_logprobs,
        )
        shown = Shown.wanted(request, logprobs=bool(request.logprobs))
        echo = _last_words(request) if request.echo else ""
        reply = ChatFormat(head, engine.text.tokenizer, shown, prompt, echo)
        return Job([prompt], [params], reply, structure_field(request), search_of(request))


def _last_words(request: ChatRequest) -> str:
    """What an echo begins with: the last message, if it is the assistant's."""
    last = request.messages[-1]
    return last.content if last.role == "assistant" and isinstance(last.content, str) else ""


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
