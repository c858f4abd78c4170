"""POST /v1/responses/compact: a conversation as one short item, which the model writes itself.

OpenAI's item is encrypted, and only its own servers read it. Here the item holds the summary as a
text, and is read as what it is: the question for a summary, and the model's answer to that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.terms import Terms
from penstock_gateway.chat.prepared_chat import prepared_chat
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.generate.timeline import TimelineRecorder
from penstock_gateway.http.errors import SERVER, HTTPError
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.fields import Flag, RequestFields, Text
from penstock_gateway.request.sampling import room_for_output
from penstock_gateway.responses.chat_translation import ChatTranslation
from penstock_gateway.responses.input_items import MADE_HERE, QUESTION, InputItem
from penstock_gateway.responses.memory import conversation_before
from penstock_gateway.responses.output import failure
from penstock_gateway.responses.references import with_items
from penstock_gateway.responses.reply import ID_PREFIX, ResponsesSpec, ResponseUsage
from penstock_gateway.responses.request import ResponsesRequest, check
from penstock_gateway.service import Service

MOST_TOKENS = 4096
"""Tokens of a summary, thoughts included."""


class CompactRequest(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """input: the conversation, or what follows the previous response."""

    input: str | list[InputItem] | None = None
    instructions: Text = None
    previous_response_id: Text = None
    parallel_tool_calls: Flag = None
    """Without effect, as the one below."""
    image: Any = None


class CompactionItem(msgspec.Struct, frozen=True, tag_field="type", tag="compaction"):
    """encrypted_content: the summary, after a mark; it isn't encrypted."""

    id: str
    encrypted_content: str


class Compaction(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="response.compaction"
):
    """output: one item, which stands for the conversation in later requests."""

    id: str
    created_at: int
    output: list[CompactionItem]
    usage: ResponseUsage


OPERATION = posting(
    "/v1/responses/compact",
    "Summarise a conversation into an item that stands for it",
    CompactRequest,
    Compaction,
    traced_as="chat",
)


class _Part(msgspec.Struct):
    text: str = ""


class _Item(msgspec.Struct):
    type: str
    content: list[_Part] = []


class _Answer(msgspec.Struct):
    id: str
    created_at: int
    output: list[_Item]
    usage: ResponseUsage


class Compact(GenerateEndpoint[CompactRequest]):
    """Asks the model for a summary, after all that the request holds."""

    request_type = CompactRequest
    reply_spec = ResponsesSpec
    id_prefix = ID_PREFIX

    def check(self, request: CompactRequest) -> None:
        check(_whole_request(request))
        if request.stream:
            raise InvalidRequest(
                "stream is true; a compaction isn't streamed; allowed: false", param="stream"
            )
        if not request.input and request.previous_response_id is None:
            raise InvalidRequest(
                "input is missing or empty; it must hold the conversation",
                param="input",
                code="missing_required_parameter",
            )

    def failure(self, error: HTTPError) -> bytes:
        return failure(error)

    async def prepare(
        self, request: CompactRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        whole = await with_items(self._service, _whole_request(request), lease.tenant)
        before = await conversation_before(self._service, whole, lease.tenant, head.id)
        own = whole.input if isinstance(whole.input, list) else []
        asked = [*own, InputItem(role="user", content=QUESTION)]
        whole = msgspec.structs.replace(whole, input=asked)
        conversation = ChatTranslation(whole, before)
        limits, default = engine.welcome.limits, engine.welcome.generation.max_new_tokens

        def most(prompt_tokens: int) -> int:
            room = room_for_output(
                prompt_tokens, None, default, limits, field="max_output_tokens", source="input"
            )
            return min(MOST_TOKENS, room)

        chat = await prepared_chat(
            self._service,
            conversation.chat,
            engine,
            lease,
            max_tokens=most,
            own_words=conversation.own_words,
            now=head.created,
            tools=conversation.tools.limits,
        )
        return chat.answered_by(
            ResponsesSpec.of(whole, chat.params, conversation.tools, chat.parsing, stored=False)
        )

    async def _whole(
        self, request: CompactRequest, terms: Terms, recorder: TimelineRecorder
    ) -> list[bytes]:
        pieces = await super()._whole(request, terms, recorder)
        answer = msgspec.json.decode(b"".join(pieces), type=_Answer)
        messages = [each for each in answer.output if each.type == "message"]
        summary = "".join(part.text for each in messages for part in each.content).strip()
        if not summary:
            raise HTTPError(
                500,
                "the model wrote no summary: its thoughts took the room there was, or it ended at "
                "once; the conversation is unchanged",
                type=SERVER,
                code="compaction_failed",
            )
        item = CompactionItem(
            id=f"cmp_{answer.id.removeprefix(ID_PREFIX)}", encrypted_content=MADE_HERE + summary
        )
        made = Compaction(
            id=answer.id, created_at=answer.created_at, output=[item], usage=answer.usage
        )
        return [msgspec.json.encode(made)]


def _whole_request(request: CompactRequest) -> ResponsesRequest:
    """The conversation that is to be compacted, as a request for a response."""
    own = request.input
    items = [InputItem(role="user", content=own)] if isinstance(own, str) else own or []
    fields = {name: getattr(request, name) for name in RequestFields.__struct_fields__}
    return ResponsesRequest(
        **fields,
        input=items,
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
    )


def routes(service: Service) -> list[OperationRoute]:
    """The route of compaction."""
    return [OPERATION.route(Compact(service))]
