"""POST /v1/responses, without a memory: each request brings its whole conversation."""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.sampling_params import SamplingParams
from penstock_gateway.chat import request as chat_request
from penstock_gateway.chat.endpoint import blame_of, prompt_of, tools_of, with_grammar
from penstock_gateway.chat.output_parsing import needs_special_tokens, parsing_of
from penstock_gateway.chat.prompt import ChatMedia, template_of
from penstock_gateway.chat.request import ChatRequest
from penstock_gateway.generate.endpoint import GenerateEndpoint, Job
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.request.sampling import room_for_output, sampling_params
from penstock_gateway.responses.chat_translation import ChatTranslation
from penstock_gateway.responses.output import EventWriter
from penstock_gateway.responses.reply import ID_PREFIX, Response, ResponsesFormat
from penstock_gateway.responses.request import ResponsesRequest, check
from penstock_gateway.service import EngineInfo, Service

OPERATION = posting(
    "/v1/responses",
    "Answer a conversation, statelessly",
    ResponsesRequest,
    Response,
    streams=True,
    traced_as="chat",
)


class Responses(GenerateEndpoint[ResponsesRequest]):
    """One conversation in, one answer out."""

    request_type = ResponsesRequest
    id_prefix = ID_PREFIX

    def check(self, request: ResponsesRequest) -> None:
        check(request)

    def failure(self, error: HTTPError) -> bytes:
        events = EventWriter()
        events.fail(error.body)
        return bytes(events.out)

    async def prepare(
        self, request: ResponsesRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> Job:
        conversation = ChatTranslation(request)
        try:
            return await self._prepare(request, conversation, engine, head, lease)
        except InvalidRequest as error:
            raise conversation.own_words(error) from None

    async def _prepare(
        self,
        request: ResponsesRequest,
        conversation: ChatTranslation,
        engine: EngineInfo,
        head: ReplyHead,
        lease: MediaLease,
    ) -> Job:
        config, chat = self._service.config, conversation.chat
        chat_request.check(chat)
        use = tools_of(chat, auto_allowed=config.enable_auto_tool_choice)
        prompt = await prompt_of(chat, engine, use, ChatMedia(self._service.media, lease))
        params = _params(request, chat, engine, len(prompt.prompt_token_ids))
        template = template_of(engine).source
        constrained = params.structured_outputs is not None
        tokenizer, tools = engine.text.tokenizer, conversation.tools
        parsing = parsing_of(
            config,
            template,
            use,
            prompt.text,
            tokenizer,
            constrained=constrained,
            include_reasoning=True,
        )
        if parsing is not None and params.logprobs is not None:
            raise _no_logprobs(request)
        if needs_special_tokens(config, template, use) and not constrained:
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        reply = ResponsesFormat(head, tokenizer, request, params, tools, parsing)
        blame = blame_of(chat, use)
        return Job(
            [prompt.prompt_token_ids],
            [with_grammar(params, use)],
            reply,
            lambda error: conversation.own_words(blame(error)),
            media=prompt.media,
        )


def _params(
    request: ResponsesRequest, chat: ChatRequest, engine: EngineInfo, prompt_tokens: int
) -> SamplingParams:
    """Raises InvalidRequest."""
    max_tokens = room_for_output(
        prompt_tokens,
        request.max_output_tokens,
        engine.welcome.generation.max_new_tokens,
        engine.welcome.limits,
        field="max_output_tokens",
        source="input",
    )
    return sampling_params(
        chat,
        engine.welcome,
        max_tokens=max_tokens,
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
    )


def _no_logprobs(request: ResponsesRequest) -> InvalidRequest:
    """A parser tells of texts, so nobody knows which tokens are a message's."""
    field = "top_logprobs" if request.top_logprobs is not None else "include"
    return InvalidRequest(
        f"{field} asks for log-probabilities, which can't be combined with tools, nor with a "
        "model whose reasoning is told apart (--reasoning-parser)",
        param=field,
        code="unsupported_value",
    )


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(Responses(service))]
