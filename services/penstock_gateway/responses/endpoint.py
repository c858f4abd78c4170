"""POST /v1/responses, without a memory: each request brings its whole conversation."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock_gateway.chat.prepared_chat import prepared_chat
from penstock_gateway.generate.endpoint import GenerateEndpoint, Job
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.request.sampling import room_for_output
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
        limits, own = engine.welcome.limits, engine.welcome.generation.max_new_tokens

        def most(prompt_tokens: int) -> int:
            return room_for_output(
                prompt_tokens,
                request.max_output_tokens,
                own,
                limits,
                field="max_output_tokens",
                source="input",
            )

        asked = conversation.chat
        chat = await prepared_chat(
            self._service,
            asked,
            engine,
            lease,
            max_tokens=most,
            own_words=conversation.own_words,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        )
        if chat.parsing is not None and chat.params.logprobs is not None:
            raise _no_logprobs(request)
        reply = ResponsesFormat(
            head, engine.text.tokenizer, request, chat.params, conversation.tools, chat.parsing
        )
        return chat.job(reply)


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
