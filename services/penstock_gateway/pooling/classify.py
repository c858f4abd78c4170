"""POST /classify."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.client.entities import (
    NO_ENTITY,
    ClassifiedToken,
    Entity,
    classified_tokens,
    entities_of,
)
from penstock.client.pool_request import check_task, pooling_model
from penstock.errors import InvalidRequest
from penstock.protocol.common import Pooling
from penstock_gateway.generate.chunked_reply import paced
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import Flag, InputField, PoolFields, PoolUsage, inputs_of
from penstock_gateway.request.tokenising import off_the_loop
from penstock_gateway.service import Service


class ClassifyRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """use_activation: false gives the head's own numbers.  aggregation_strategy: of a model that
    classifies tokens: none gives each token that has a label, simple entities of neighbours of one
    label; absent: simple."""

    input: InputField = None
    use_activation: Flag = None
    aggregation_strategy: Literal["none", "simple"] | None = None
    add_special_tokens: Flag = None


class TextEntity(msgspec.Struct, frozen=True):
    """entity_group: the label, or with aggregation_strategy none entity, as the model has it.
    index: of the token.  start, end: characters of the input, and word is what stands there,
    without spaces around it."""

    score: float
    word: str
    start: int
    end: int
    entity_group: str | UnsetType = UNSET
    entity: str | UnsetType = UNSET
    index: int | UnsetType = UNSET


class Class(msgspec.Struct, frozen=True):
    """label: the likeliest.  probs: of all, in the model's order.  entities: of a model that
    classifies tokens, in place of the others."""

    index: int
    label: str | UnsetType = UNSET
    probs: list[float] | UnsetType = UNSET
    num_classes: int | UnsetType = UNSET
    entities: list[TextEntity] | UnsetType = UNSET


class ClassifyReply(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    id: str
    created: int
    model: str
    data: list[Class]
    usage: PoolUsage


class Classify(PoolEndpoint[ClassifyRequest]):
    request_type = ClassifyRequest
    id_prefix = "classify"

    async def answer(self, request: ClassifyRequest, call: Call) -> ClassifyReply:
        welcome = call.engine.welcome
        if pooling_model(welcome).by_token:
            return await self._entities(request, call)
        if request.aggregation_strategy is not None:
            raise InvalidRequest(
                "aggregation_strategy is for models that classify tokens; this one classifies "
                "texts",
                param="aggregation_strategy",
                code="unsupported_model",
            )
        check_task("classify", welcome)
        given = inputs_of(request.input)
        inputs = await call.read(given, add_special=request.add_special_tokens is not False)
        results = await call.pool(inputs, Pooling("classify", activate=request.use_activation))
        labels = welcome.pooling.labels if welcome.pooling is not None else ()
        data = []
        for index, result in enumerate(results):
            probs = result.values()
            best = max(range(len(probs)), key=probs.__getitem__)
            data.append(Class(index, labels[best], probs, len(probs)))
        return ClassifyReply(call.id, call.created, call.model, data, usage_of(results))

    async def _entities(self, request: ClassifyRequest, call: Call) -> ClassifyReply:
        welcome, tokenizer = call.engine.welcome, call.engine.text.tokenizer
        inputs = inputs_of(request.input)
        given = [each for each in inputs if isinstance(each, str)]
        if len(given) < len(inputs) or request.add_special_tokens is False:
            raise InvalidRequest(
                "entities are found in texts, with the model's special tokens; /pooling gives the "
                "classes of token ids",
                param="input",
            )
        if request.use_activation is False:
            raise InvalidRequest(
                "use_activation is false; entities have probabilities, and /pooling gives the "
                "head's own numbers",
                param="use_activation",
            )
        if call.side == "left":
            raise InvalidRequest(
                "truncation_side is left; the texts in which entities are found are cut right",
                param="truncation_side",
                code="unsupported_value",
            )
        results = await call.pool(await call.read([*given]), Pooling("token_classify"))
        spans = await off_the_loop(
            lambda: [tokenizer.spans(text, limit=call.limit) for text in given],
            sum(len(text) for text in given),
        )
        labels, data = pooling_model(welcome).labels, []
        async with paced(sum(result.prompt_tokens for result in results)) as pace:
            for index, (text, result) in enumerate(zip(given, results, strict=True)):
                tokens = classified_tokens(result.rows(), spans[index], labels)
                found = _shown(text, tokens, request.aggregation_strategy)
                data.append(Class(index, entities=found))
                await pace.rest()
        return ClassifyReply(call.id, call.created, call.model, data, usage_of(results))


def _shown(text: str, tokens: list[ClassifiedToken], strategy: str | None) -> list[TextEntity]:
    if strategy == "none":
        return [
            _text_entity(text, each, entity=each.label, index=each.index)
            for each in tokens
            if each.label != NO_ENTITY
        ]
    return [_text_entity(text, each, entity_group=each.label) for each in entities_of(tokens)]


def _text_entity(text: str, found: ClassifiedToken | Entity, **named: Any) -> TextEntity:
    """named: its label, by the field for it."""
    place = slice(found.start, found.end)
    # SentencePiece's tokens begin with the space before a word.
    return TextEntity(found.score, text[place].strip(), found.start, found.end, **named)


OPERATION = posting(
    "/classify",
    "Classify texts",
    ClassifyRequest,
    ClassifyReply,
    tag="pooling",
    headers=("x-deadline-ms",),
)


def routes(service: Service) -> list[OperationRoute]:
    return [OPERATION.route(Classify(service))]
