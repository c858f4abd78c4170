"""POST /embed, /embed_all, /embed_sparse, /predict, /similarity and GET /info, as Text Embeddings
Inference has them. Its /rerank is the gateway's own."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.pool_request import check_task, pooling_model
from penstock.client.pooling_inputs import PoolInput, cosine
from penstock.errors import InvalidRequest
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import Pooling, PoolingTask
from penstock.protocol.to_frontend import Welcome
from penstock.version import __version__
from penstock_gateway.generate.chunked_reply import JsonList, paced
from penstock_gateway.http.operations import Operation, OperationRoute, posting
from penstock_gateway.pooling.cutting import Direction, read_options
from penstock_gateway.pooling.embeddings import NUMBERS_PER_TOKEN, checked_dimensions, vector_list
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint
from penstock_gateway.pooling.fields import Flag, PoolFields, Text, Whole, check_numbers
from penstock_gateway.pooling.sparse import TokenWeight, weight_list
from penstock_gateway.request.input_texts import MAX_INPUTS, check_count, named_prompt, texts_of
from penstock_gateway.service import Service


class TextFields(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """truncate: texts that are too long lose their end; absent, or false: they are refused.
    truncation_direction: left, they lose their beginning.  prompt_name: of a prompt that the
    model's files name, which goes in front."""

    truncate: Flag = None
    truncation_direction: Direction | None = None
    prompt_name: Text = None


class TextsRequest(TextFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """inputs: a text, or a list of texts."""

    inputs: str | list[str]


class TEIEmbedRequest(TextsRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """dimensions: numbers kept of each vector.  normalize: to length 1, after that; absent: it
    is."""

    dimensions: Whole = None
    normalize: Flag = None


class PredictParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """top_k: labels that each text gets.  function_to_apply: none gives the head's own numbers."""

    top_k: Whole = None
    function_to_apply: Literal["none"] | None = None


class PredictRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """inputs: a text; a list of two texts, which are a pair; or a list of lists, each of a text or
    a pair.  raw_scores: true gives the head's own numbers.  truncate, truncation_direction: as in
    /embed.  parameters: Hugging Face's, with which a single text's answer is in a list, too."""

    inputs: str | list[str | list[str]]
    parameters: PredictParameters | None = None
    raw_scores: Flag = None
    truncate: Flag = None
    truncation_direction: Direction | None = None


class SimilarityInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text, and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields as in /embed."""

    truncate: Flag = None
    truncation_direction: Direction | None = None
    prompt_name: Text = None


class SimilarityRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """inputs: what is compared.  parameters: how texts are read."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


def _prompt(call: Call, name: str | None) -> str:
    """Raises InvalidRequest for a name that the model's files lack."""
    return "" if name is None else named_prompt(name, call.engine.welcome.pooling)


async def read_texts(request: TextsRequest, call: Call, task: PoolingTask) -> list[PoolInput]:
    """Returns the texts as inputs for that task. Raises InvalidRequest, also where the model has no
    such task."""
    check_task(task, call.engine.welcome)
    read_options(call, request)
    prompt = _prompt(call, request.prompt_name)
    return await call.read([prompt + each for each in texts_of("inputs", request.inputs)])


class TEIEmbed(PoolEndpoint[TEIEmbedRequest]):
    request_type = TEIEmbedRequest
    id_prefix = "embd"

    async def answer(self, request: TEIEmbedRequest, call: Call) -> Any:
        inputs = await read_texts(request, call, "embed")
        normalize = True if request.normalize is None else request.normalize
        asked = Pooling(
            "embed", dimensions=checked_dimensions(request.dimensions, call), normalize=normalize
        )
        results = await call.pool(inputs, asked)
        return await vector_list(results, call.splices, lambda index, vector: vector)


class EmbedAll(PoolEndpoint[TextsRequest]):
    request_type = TextsRequest
    id_prefix = "embd"

    async def answer(self, request: TextsRequest, call: Call) -> Any:
        inputs = await read_texts(request, call, "token_embed")
        size = pooling_model(call.engine.welcome).row_size("token_embed")
        check_numbers(sum(len(each.prompt_token_ids) for each in inputs), size)
        results = await call.pool(inputs, Pooling("token_embed", normalize=False))
        return await vector_list(results, call.splices, lambda index, rows: rows)


class EmbedSparse(PoolEndpoint[TextsRequest]):
    request_type = TextsRequest
    id_prefix = "sparse"

    async def answer(self, request: TextsRequest, call: Call) -> object:
        inputs = await read_texts(request, call, "embed_sparse")
        results = await call.pool(inputs, Pooling("embed_sparse"))
        whole = JsonList()
        for pieces in await weight_list(results, call, named=False):
            whole.add_written(pieces)
        return call.splices.put(whole.pieces())


class ScoredLabel(msgspec.Struct, frozen=True):
    """score: the label's probability, or with raw_scores its logit."""

    score: float
    label: str


class Predict(PoolEndpoint[PredictRequest]):
    request_type = PredictRequest
    id_prefix = "classify"

    async def answer(
        self, request: PredictRequest, call: Call
    ) -> list[ScoredLabel] | list[list[ScoredLabel]]:
        check_task("classify", call.engine.welcome)
        read_options(call, request)
        wanted = request.parameters or PredictParameters()
        if wanted.top_k is not None and wanted.top_k < 1:
            raise InvalidRequest(
                f"parameters.top_k must be a whole number ≥ 1, not {wanted.top_k}",
                param="parameters.top_k",
            )
        given, alone = _sequences(request.inputs)
        pairs = [(each[0], each[1]) for each in given if len(each) == 2]
        of_pairs = iter(await call.read_pairs(pairs, None))
        of_texts = iter(await call.read([each[0] for each in given if len(each) == 1]))
        inputs = [next(of_pairs if len(each) == 2 else of_texts) for each in given]
        raw = request.raw_scores or wanted.function_to_apply is not None
        asked = Pooling("classify", activate=False if raw else None)
        results = await call.pool(inputs, asked)
        labels = pooling_model(call.engine.welcome).labels
        found = []
        async with paced(sum(result.size for result in results) // NUMBERS_PER_TOKEN) as pace:
            for result in results:
                scored = zip(result.values(), labels, strict=True)
                made = [ScoredLabel(score, label) for score, label in scored]
                found.append(sorted(made, key=lambda each: -each.score)[: wanted.top_k])
                await pace.rest()
        return found[0] if alone and request.parameters is None else found


def _sequences(inputs: str | list[str | list[str]]) -> tuple[list[list[str]], bool]:
    """Texts and pairs in order, and whether it is one that isn't in a list of its own. Raises
    InvalidRequest."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    whole = [each for each in texts if isinstance(each, str)]
    alone = len(whole) == len(texts) and len(whole) > 0
    if whole and not alone:
        raise InvalidRequest(
            "inputs mixes texts and lists; allowed: a text, a list of two texts, or a list of "
            "lists, each of a text or two",
            param="inputs",
            code="invalid_type",
        )
    given = [whole] if alone else [each for each in texts if isinstance(each, list)]
    check_count("inputs", len(given))
    for place, each in enumerate(given):
        where = "inputs" if alone else f"inputs[{place}]"
        if len(each) not in (1, 2):
            raise InvalidRequest(
                f"{where} has {len(each)} texts; allowed: one, or two, which are a pair; several "
                "inputs are a list of lists",
                param=where,
            )
        if not all(each):
            raise InvalidRequest(f"{where} has an empty text", param=where)
    return given, alone


class Similarity(PoolEndpoint[SimilarityRequest]):
    request_type = SimilarityRequest
    id_prefix = "score"

    async def answer(self, request: SimilarityRequest, call: Call) -> list[float]:
        check_task("embed", call.engine.welcome)
        read_options(call, request.parameters)
        source, sentences = request.inputs.source_sentence, request.inputs.sentences
        texts = [*texts_of("inputs.source_sentence", source)]
        texts += texts_of("inputs.sentences", sentences)
        parameters = request.parameters
        prompt = _prompt(call, None if parameters is None else parameters.prompt_name)
        results = await call.pool(
            await call.read([prompt + each for each in texts]), Pooling("embed")
        )
        found, first = [], results[0].values()
        async with paced(sum(result.size for result in results) // NUMBERS_PER_TOKEN) as pace:
            for result in results[1:]:
                found.append(cosine(first, result.values()))
                await pace.rest()
        return found


class Classifier(msgspec.Struct, frozen=True):
    """The labels by their number as text, and the other way round."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class EmbeddingKind(msgspec.Struct, frozen=True):
    """pooling: mean, max, cls, last_token or splade."""

    pooling: str


class ModelType(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. reranker: a classifier with one label."""

    embedding: EmbeddingKind | UnsetType = UNSET
    classifier: Classifier | UnsetType = UNSET
    reranker: Classifier | UnsetType = UNSET


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """model_dtype: of most weights; null: not known.  model_type: absent of a model that generates
    text.  max_input_length: tokens.  max_client_batch_size: inputs in a request.
    max_concurrent_requests: that may wait.  auto_truncate: false: a request says whether it is cut.
    version: Penstock's."""

    model_id: str
    model_dtype: str | None
    model_type: ModelType | UnsetType = UNSET
    max_concurrent_requests: int
    max_input_length: int
    max_client_batch_size: int = MAX_INPUTS
    auto_truncate: bool = False
    version: str = __version__


def info_of(welcome: Welcome) -> Info:
    """What TEI's clients ask of a model before they use it."""
    return Info(
        model_id=welcome.hub_id or welcome.model,
        model_dtype=welcome.weights.dtype or None,
        model_type=UNSET if welcome.pooling is None else _type_of(welcome.pooling),
        max_concurrent_requests=welcome.limits.max_waiting_requests,
        max_input_length=welcome.limits.max_model_len,
    )


def _type_of(pooling: PoolingConfig) -> ModelType:
    if pooling.labels:
        labels = pooling.labels
        known = Classifier(
            {str(place): label for place, label in enumerate(labels)},
            {label: place for place, label in enumerate(labels)},
        )
        return ModelType(reranker=known) if len(labels) == 1 else ModelType(classifier=known)
    sparse = pooling.sparse is not None and pooling.sparse.tokens is None
    kind = "splade" if sparse else "last_token" if pooling.mode == "last" else pooling.mode
    return ModelType(embedding=EmbeddingKind(kind))


INFO = Operation(
    method="GET",
    path="/info",
    summary="Describe the model (TEI)",
    tag="models",
    reply=Info,
    statuses=(404,),
)


def _posting(
    path: str,
    summary: str,
    body: type,
    reply: Any,
    traced_as: str | None = None,
    *,
    inputs: Any,
) -> Operation:
    """inputs: of the example."""
    return posting(
        path,
        f"{summary} (TEI)",
        body,
        reply,
        tag="pooling",
        headers=("x-deadline-ms",),
        traced_as=traced_as,
        example={"inputs": inputs},
    )


_TEXT = "A kitten sleeps."
_OTHERS = ["A young cat naps.", "The market fell."]
EMBED = _posting(
    "/embed",
    "Embed texts",
    TEIEmbedRequest,
    list[list[float]],
    "embeddings",
    inputs=[_TEXT, _OTHERS[0]],
)
EMBED_ALL = _posting(
    "/embed_all",
    "Embed each token of texts",
    TextsRequest,
    list[list[list[float]]],
    "embeddings",
    inputs=_TEXT,
)
EMBED_SPARSE = _posting(
    "/embed_sparse", "Embed texts sparsely", TextsRequest, list[list[TokenWeight]], inputs=_TEXT
)
PREDICT = _posting(
    "/predict",
    "Classify texts, or pairs of them",
    PredictRequest,
    list[ScoredLabel | list[ScoredLabel]],
    inputs="The film was wonderful.",
)
SIMILARITY = _posting(
    "/similarity",
    "Compare a text with others",
    SimilarityRequest,
    list[float],
    inputs={"source_sentence": _TEXT, "sentences": _OTHERS},
)


def routes(service: Service) -> list[OperationRoute]:
    """The six routes; 503 while there is no engine core, unless one is started on demand."""

    async def info(request: Request) -> Response:
        asked = service.models.ask(None)
        content = msgspec.json.encode(info_of(asked.engine.welcome))
        return Response(content, media_type="application/json")

    return [
        EMBED.route(TEIEmbed(service)),
        EMBED_ALL.route(EmbedAll(service)),
        EMBED_SPARSE.route(EmbedSparse(service)),
        PREDICT.route(Predict(service)),
        SIMILARITY.route(Similarity(service)),
        INFO.route(info),
    ]
