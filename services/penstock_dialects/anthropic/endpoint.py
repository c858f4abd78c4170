"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock_dialects.anthropic.conversation import Conversation
from penstock_dialects.anthropic.errors import ERRORS
from penstock_dialects.anthropic.models import BETA
from penstock_dialects.anthropic.reply import ID_PREFIX, MessageReply, MessagesSpec, failed_event
from penstock_dialects.anthropic.request import (
    ANTHROPIC,
    CountRequest,
    MessagesRequest,
    check,
    check_budget,
    check_max_tokens,
)
from penstock_gateway.chat.endpoint import check_chat, prompt_of, tools_of
from penstock_gateway.chat.prepared_chat import prepared_chat
from penstock_gateway.chat.prompt import ChatMedia, ChatPrompt
from penstock_gateway.chat.tools import ANY_TOOLS
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.events import while_connected
from penstock_gateway.http.operations import SIGNED_HEADERS, OperationRoute, posting
from penstock_gateway.http.replies import send_json
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import terms_headers
from penstock_gateway.request.sampling import room_for_output
from penstock_gateway.service import Service


class TokenCount(msgspec.Struct):
    """input_tokens: of the conversation, the template's own included."""

    input_tokens: int


MESSAGES = posting(
    "/v1/messages",
    "Create a message (Anthropic)",
    MessagesRequest,
    MessageReply,
    streams=True,
    traced_as="chat",
    headers=SIGNED_HEADERS,
    errors_as=ERRORS,
    query=BETA,
)
COUNT_TOKENS = posting(
    "/v1/messages/count_tokens",
    "Count the tokens of a message (Anthropic)",
    CountRequest,
    TokenCount,
    tag="tokenize",
    headers=(),
    errors_as=ERRORS,
    query=BETA,
)


class Messages(GenerateEndpoint[MessagesRequest]):
    """POST /v1/messages: answers one conversation."""

    request_type = MessagesRequest
    reply_spec = MessagesSpec
    id_prefix = ID_PREFIX
    gives_receipts = True
    replayable = True

    def check(self, request: MessagesRequest) -> None:
        check(request)
        check_budget(request)

    def failure(self, error: HTTPError) -> bytes:
        return failed_event(error)

    async def prepare(
        self, request: MessagesRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        conversation = Conversation(request, **ANTHROPIC.ours(request))
        wanted, limits = check_max_tokens(request), engine.welcome.limits

        def most(prompt_tokens: int) -> int:
            # Coding agents ask for more than a small model has: it gets what there is, as
            # Anthropic's models do.
            room = room_for_output(
                prompt_tokens, None, None, limits, field="max_tokens", source="messages"
            )
            return min(wanted, room)

        chat = await prepared_chat(
            self._service,
            conversation.chat,
            engine,
            lease,
            max_tokens=most,
            tools=ANY_TOOLS,
            own_words=conversation.own_words,
            now=head.created,
        )
        prompt_tokens = len(chat.prompt.prompt_token_ids)
        short_of = most(prompt_tokens) < wanted
        return chat.answered_by(MessagesSpec(prompt_tokens, chat.parsing, short_of))


class CountTokens(JsonEndpoint[CountRequest]):
    """Fills the template and tokenises, and asks no engine core."""

    request_type = CountRequest
    answers_while_leaving = True
    runs_elsewhere = True

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        check(request)
        headers = terms_headers(scope)
        prompt = await while_connected(self._prompt(request, headers.tenant), receive)
        count = TokenCount(len(prompt.prompt_token_ids))
        await send_json(send, 200, msgspec.json.encode(count))

    async def _prompt(self, request: CountRequest, tenant: str) -> ChatPrompt:
        async with self._service.models.using(request.model) as asked:
            return await self._prompt_for(request, asked.engine, tenant)

    async def _prompt_for(
        self, request: CountRequest, engine: EngineInfo, tenant: str
    ) -> ChatPrompt:
        conversation = Conversation(request)
        try:
            check_chat(conversation.chat)
            use = tools_of(conversation.chat, limits=ANY_TOOLS)
            with self._service.media.lease(tenant) as lease:
                media = ChatMedia(self._service.media, lease, store=self._service.store)
                return await prompt_of(conversation.chat, engine, use, media)
        except InvalidRequest as error:
            raise conversation.own_words(error) from None


def routes(service: Service) -> list[OperationRoute]:
    """The routes of messages and of counting their tokens."""
    return [MESSAGES.route(Messages(service)), COUNT_TOKENS.route(CountTokens(service))]
