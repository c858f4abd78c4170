"""POST /v1/fim/completions, as in Mistral's API: what stands before a gap and after it in, what
fills it out, in the form of a chat's answer."""

from __future__ import annotations

from functools import partial

from penstock.media.budget import MediaLease
from penstock_gateway.chat.reply import ChatCompletion, ChatSpec
from penstock_gateway.fim.prompt import check_fim, fim_prompt
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import (
    EchoOptions,
    ReplyHead,
    check_listed,
    check_prompt_logprobs,
)
from penstock_gateway.generate.search import check_search, search_of
from penstock_gateway.http.operations import GENERATING_HEADERS, OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.answer_form import blame, structure_field
from penstock_gateway.request.fields import COMMON, GenerateFields, Text, check_unsupported
from penstock_gateway.request.sampling import fitted
from penstock_gateway.request.tokenising import encode, predicted_ids
from penstock_gateway.service import Service


class FIMRequest(GenerateFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """suffix: null or empty: the prompt is continued."""

    prompt: str
    suffix: Text = None


OPERATION = posting(
    "/v1/fim/completions",
    "Fill in the middle",
    FIMRequest,
    ChatCompletion,
    streams=True,
    headers=GENERATING_HEADERS,
    traced_as="text_completion",
)


class FIMCompletions(GenerateEndpoint[FIMRequest]):
    request_type = FIMRequest
    reply_spec = ChatSpec
    id_prefix = "fim-"
    replayable = True

    def check(self, request: FIMRequest) -> None:
        check_unsupported(request, COMMON)
        check_prompt_logprobs(request)
        check_listed(request, logprobs=False)
        check_fim(request)
        if request.searches:
            check_search(request)

    async def prepare(
        self, request: FIMRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        tokenizer = engine.text.tokenizer
        if request.suffix:
            ids, request = await fim_prompt(request.prompt, request.suffix, request, engine)
        else:
            ids = await encode(
                lambda most: tokenizer.encode(request.prompt, most=most),
                len(request.prompt),
                engine.welcome.limits.max_model_len,
            )
        ids, params = fitted(
            request,
            engine,
            ids,
            request.max_tokens,
            field="max_tokens",
            source="prompt",
            logprobs=None,
        )
        echo_options = EchoOptions.of(request, logprobs=False)
        echo = request.prompt if request.echo else ""
        return PreparedRequest(
            [ids],
            [params],
            ChatSpec(echo_options, ids if echo_options.prompt else [], echo),
            partial(blame, field=structure_field(request)),
            search_of(request) if request.searches else None,
            prediction=await predicted_ids(request.prediction, engine),
        )


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(FIMCompletions(service))]
