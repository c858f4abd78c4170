"""POST /generate, /generate_stream and /, as Text Generation Inference has them. Hugging Face's
InferenceClient posts to / whatever the task is, and so do clients of Text Embeddings Inference: the
model and the fields say which."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.protocol.to_frontend import Welcome
from penstock_gateway.completions.endpoint import check as check_completion
from penstock_gateway.completions.endpoint import token_ids_of
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.generate.search import search_of
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import GENERATING_HEADERS, OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.pooling.rerank import Rerank
from penstock_gateway.request.answer_form import blame
from penstock_gateway.request.endpoint import Headers, with_body
from penstock_gateway.request.forwarding import named_model, read_fields
from penstock_gateway.request.sampling import (
    room_for_output,
    sampling_params,
    sequences_of,
    truncated,
)
from penstock_gateway.service import Service
from penstock_platforms.tei import Predict, Similarity, TEIEmbed
from penstock_platforms.tgi.reply import (
    GeneratedText,
    ShownGeneration,
    TGISpec,
    failed_generation,
)
from penstock_platforms.tgi.request import (
    DEFAULT_NEW_TOKENS,
    ERRORS,
    TGI,
    GenerateRequest,
    check,
    in_completions_words,
    with_adapter,
)


class TGIGenerate(GenerateEndpoint[GenerateRequest]):
    """A prompt in, its continuation out."""

    request_type = GenerateRequest
    reply_spec = TGISpec
    id_prefix = "generate-"
    ignores_unknown = True
    streams_always = False
    is_list = False
    """Whether the unstreamed reply is a list of one answer."""

    def understood(self, body: bytes, headers: Headers) -> GenerateRequest:
        request = with_adapter(super().understood(body, headers))
        return msgspec.structs.replace(request, stream=True) if self.streams_always else request

    def failure(self, error: HTTPError) -> bytes:
        return failed_generation(error)

    def check(self, request: GenerateRequest) -> None:
        check(request)
        try:
            check_completion(in_completions_words(request))
        except InvalidRequest as error:
            raise TGI.own_words(error) from None

    async def prepare(
        self, request: GenerateRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        try:
            return await self._prepared(request, engine)
        except InvalidRequest as error:
            raise TGI.own_words(error) from None

    async def _prepared(self, request: GenerateRequest, engine: EngineInfo) -> PreparedRequest:
        asked, limits = in_completions_words(request), engine.welcome.limits
        ids = await token_ids_of(request.inputs, asked, engine)
        if not ids:
            raise InvalidRequest("inputs is empty; it must have at least one token", param="inputs")
        ids = truncated(ids, asked, asked.max_tokens, limits.max_model_len)
        sequences, many = sequences_of(asked)
        own = engine.welcome.generation.max_new_tokens
        room = room_for_output(
            len(ids),
            asked.max_tokens,
            min(DEFAULT_NEW_TOKENS, own or DEFAULT_NEW_TOKENS),
            limits,
            field="max_tokens",
            source="prompt",
            sequences=sequences,
            many=many,
            oversized=engine.config.oversized_max_tokens,
        )
        params = sampling_params(asked, engine.welcome, max_tokens=room, logprobs=asked.logprobs)
        wanted = request.parameters
        wishes = ShownGeneration(
            prompt=request.inputs if wanted.return_full_text else "",
            tokens=len(ids),
            seed=params.seed if params.temperature else None,
            details=bool(wanted.details),
            top_tokens=bool(wanted.top_n_tokens),
            is_list=self.is_list,
        )
        search = search_of(asked) if asked.searches else None
        return PreparedRequest([ids], [params], TGISpec(wishes), _BLAMED, search)


_BLAMED = partial(blame, field="parameters.grammar")


class GenerateStream(TGIGenerate):
    streams_always = True


class GenerateListed(TGIGenerate):
    """What is posted to /."""

    is_list = True


class PostedInputs:
    """POST /: finds the endpoint and hands the request on, whole."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._generate: ASGIApp = GenerateListed(service)
        self._embed: ASGIApp = TEIEmbed(service)
        self._similarity: ASGIApp = Similarity(service)
        self._predict: ASGIApp = Predict(service)
        self._rerank: ASGIApp = Rerank(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, fields = await read_fields(self._service, scope, receive)
        async with self._service.models.using(named_model(fields)) as asked:
            endpoint = self._endpoint(fields, asked.engine.welcome)
        await endpoint(scope, with_body(body, receive), send)

    def _endpoint(self, fields: Mapping[str, msgspec.Raw], welcome: Welcome) -> ASGIApp:
        """The one that a body with these fields is for, at this model."""
        if welcome.pooling is None:
            return self._generate
        if "query" in fields:
            return self._rerank
        if bytes(fields.get("inputs", b"")).lstrip().startswith(b"{"):
            return self._similarity
        return self._embed if "embed" in welcome.pooling_tasks else self._predict


def routes(service: Service) -> list[OperationRoute]:
    """The three routes."""
    posted = partial(
        posting,
        body=GenerateRequest,
        reply=GeneratedText,
        streams=True,
        headers=GENERATING_HEADERS,
        traced_as="text_completion",
        errors_as=ERRORS,
        example={"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}},
    )
    return [
        posted("/generate", "Continue a prompt (TGI)").route(TGIGenerate(service)),
        posted("/generate_stream", "Continue a prompt, in a stream (TGI)").route(
            GenerateStream(service)
        ),
        posted(
            "/",
            "Continue a prompt, or embed or classify texts (TGI, TEI)",
            reply=list[GeneratedText],
        ).route(PostedInputs(service)),
    ]
