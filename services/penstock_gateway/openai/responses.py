"""POST /v1/responses, without a memory: each request brings its whole conversation."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock_gateway.openai import chat_request
from penstock_gateway.openai.chat_completions import prompt_of, tools_of
from penstock_gateway.openai.endpoint import GenerateEndpoint, Job
from penstock_gateway.openai.reply import ReplyHead
from penstock_gateway.openai.responses_reply import Response, ResponsesFormat
from penstock_gateway.openai.responses_request import Conversation, ResponsesRequest, check
from penstock_gateway.openai.sampling import room_for_output, sampling_params
from penstock_gateway.operations import OperationRoute, posting
from penstock_gateway.service import Engine, Service

OPERATION = posting(
    "/v1/responses", "Answer a conversation, statelessly", ResponsesRequest, Response, streams=True
)


class Responses(GenerateEndpoint[ResponsesRequest]):
    """One conversation in, one answer out."""

    request_type = ResponsesRequest
    id_prefix = "resp"

    def check(self, request: ResponsesRequest) -> None:
        check(request)

    async def prepare(self, request: ResponsesRequest, engine: Engine, head: ReplyHead) -> Job:
        conversation = Conversation(request)
        try:
            return await self._prepare(request, conversation, engine, head)
        except InvalidRequest as error:
            raise conversation.own_words(error) from None

    async def _prepare(
        self,
        request: ResponsesRequest,
        conversation: Conversation,
        engine: Engine,
        head: ReplyHead,
    ) -> Job:
        chat = conversation.chat
        chat_request.check(chat)
        prompt = (await prompt_of(chat, engine, tools_of(chat))).ids
        max_tokens = room_for_output(
            len(prompt),
            request.max_output_tokens,
            None,
            engine.welcome.limits.max_model_len,
            field="max_output_tokens",
            source="input",
        )
        params = sampling_params(
            chat,
            engine.welcome,
            max_tokens=max_tokens,
            logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        )
        reply = ResponsesFormat(head, engine.text.tokenizer, request, params)
        structure = None if params.structured_outputs is None else "text.format"
        return Job([prompt], [params], reply, structure)


def routes(service: Service) -> list[OperationRoute]:
    """The one route; see chat_completions.routes."""
    return [OPERATION.route(Responses(service))]
