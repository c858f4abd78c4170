"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock_gateway.anthropic.conversation import Conversation
from penstock_gateway.anthropic.errors import MessageErrorReply, encoded
from penstock_gateway.anthropic.reply import ID_PREFIX, MessageReply, MessagesFormat, failed_event
from penstock_gateway.anthropic.request import (
    CountRequest,
    MessagesRequest,
    check,
    check_max_tokens,
)
from penstock_gateway.chat import request as chat_request
from penstock_gateway.chat.endpoint import blame_of, prompt_of, tools_of, with_grammar
from penstock_gateway.chat.output_parsing import needs_special_tokens, parsing_of
from penstock_gateway.chat.prompt import ChatMedia, ChatPrompt, template_of
from penstock_gateway.generate.endpoint import GenerateEndpoint, Job
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.disconnect import while_connected
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import ErrorShape, OperationRoute, posting
from penstock_gateway.http.replies import send_json
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.sampling import room_for_output, sampling_params
from penstock_gateway.request.terms import terms_headers
from penstock_gateway.service import EngineInfo, Service


class TokenCount(msgspec.Struct):
    """input_tokens: of the conversation, the template's own included."""

    input_tokens: int


ERRORS = ErrorShape(MessageErrorReply, encoded, b"request-id")

MESSAGES = posting(
    "/v1/messages",
    "Answer a conversation (Anthropic)",
    MessagesRequest,
    MessageReply,
    streams=True,
    traced_as="chat",
    errors_as=ERRORS,
)
COUNT_TOKENS = posting(
    "/v1/messages/count_tokens",
    "Count a conversation's tokens (Anthropic)",
    CountRequest,
    TokenCount,
    tag="tokenize",
    headers=(),
    errors_as=ERRORS,
)


class Messages(GenerateEndpoint[MessagesRequest]):
    """One conversation in, one answer out."""

    request_type = MessagesRequest
    id_prefix = ID_PREFIX

    def check(self, request: MessagesRequest) -> None:
        check(request)
        check_max_tokens(request)

    def failure(self, error: HTTPError) -> bytes:
        return failed_event(error)

    async def prepare(
        self, request: MessagesRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> Job:
        conversation = Conversation(
            request,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            stop=request.stop_sequences,
        )
        try:
            return await self._prepare(request, conversation, engine, head, lease)
        except InvalidRequest as error:
            raise conversation.own_words(error) from None

    async def _prepare(
        self,
        request: MessagesRequest,
        conversation: Conversation,
        engine: EngineInfo,
        head: ReplyHead,
        lease: MediaLease,
    ) -> Job:
        config, chat = self._service.config, conversation.chat
        chat_request.check(chat)
        use = tools_of(chat, auto_allowed=config.enable_auto_tool_choice)
        prompt = await prompt_of(chat, engine, use, ChatMedia(self._service.media, lease))
        prompt_tokens = len(prompt.prompt_token_ids)
        # Coding agents ask for more than a small model has: it gets what there is, as Anthropic's
        # models do.
        room = room_for_output(
            prompt_tokens, None, None, engine.welcome.limits, field="max_tokens", source="messages"
        )
        wanted = check_max_tokens(request)
        params = sampling_params(chat, engine.welcome, max_tokens=min(wanted, room), logprobs=None)
        template = template_of(engine).source
        constrained = params.structured_outputs is not None
        parsing = parsing_of(
            config,
            template,
            use,
            prompt.text,
            engine.text.tokenizer,
            constrained=constrained,
            include_reasoning=True,
        )
        if needs_special_tokens(config, template, use) and not constrained:
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        reply = MessagesFormat(head, prompt_tokens, parsing, short_of=wanted > room)
        blame = blame_of(chat, use)
        return Job(
            [prompt.prompt_token_ids],
            [with_grammar(params, use)],
            reply,
            lambda error: conversation.own_words(blame(error)),
            media=prompt.media,
        )


class CountTokens(JsonEndpoint[CountRequest]):
    """Fills the template and tokenises, and asks no engine core."""

    request_type = CountRequest
    answers_while_leaving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        check(request)
        engine = self._service.engine()
        self._service.check_model(request.model)
        tenant = terms_headers(scope).tenant
        prompt = await while_connected(self._prompt(request, engine, tenant), receive)
        count = TokenCount(len(prompt.prompt_token_ids))
        await send_json(send, 200, msgspec.json.encode(count))

    async def _prompt(self, request: CountRequest, engine: EngineInfo, tenant: str) -> ChatPrompt:
        conversation = Conversation(request)
        try:
            chat_request.check(conversation.chat)
            use = tools_of(conversation.chat)
            with self._service.media.lease(tenant) as lease:
                media = ChatMedia(self._service.media, lease)
                return await prompt_of(conversation.chat, engine, use, media)
        except InvalidRequest as error:
            raise conversation.own_words(error) from None


def routes(service: Service) -> list[OperationRoute]:
    """Both routes."""
    return [MESSAGES.route(Messages(service)), COUNT_TOKENS.route(CountTokens(service))]
