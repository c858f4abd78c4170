"""POST /infill, as llama.cpp's editor plugins ask it: the text around the cursor, and pieces of
other files, in; what belongs between out, in llama.cpp's form."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.text.fim import fim_tokens
from penstock_dialects.llamacpp.reply import (
    LlamaAnswer,
    LlamaSpec,
    PromptFacts,
    Shown,
)
from penstock_dialects.llamacpp.request import (
    LLAMA,
    LlamaFields,
    parameters,
    response_fields,
)
from penstock_gateway.fim.endpoint import FIMRequest
from penstock_gateway.fim.prompt import OtherFile, fim_prompt, with_files
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.operations import GENERATING_HEADERS, OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.fields import Text
from penstock_gateway.request.tokenising import encode
from penstock_gateway.service import Service

MAX_FILES = 256
"""Entries of input_extra."""
SEVERAL_TEMPERATURE = 0.8
"""Temperature where several answers are asked for: llama.cpp's own default."""


class InfillRequest(LlamaFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """input_prefix, prompt: what stands before the gap, up to the cursor's line and of it.
    input_suffix: what stands after it.  input_extra: pieces of other files, the nearest last; the
    first are left out where the context has no room for all.  temperature: 0 by default, 0.8 for
    several answers."""

    input_prefix: Text = None
    input_suffix: Text = None
    input_extra: list[OtherFile] | None = None
    prompt: Text = None


OPERATION = posting(
    "/infill",
    "Fill in the middle (llama.cpp)",
    InfillRequest,
    LlamaAnswer,
    streams=True,
    headers=GENERATING_HEADERS,
    traced_as="text_completion",
)


class Infill(GenerateEndpoint[InfillRequest]):
    request_type = InfillRequest
    reply_spec = LlamaSpec
    id_prefix = "infill-"

    def check(self, request: InfillRequest) -> None:
        LLAMA.check(request)
        response_fields(request)
        files = len(request.input_extra or ())
        if files > MAX_FILES:
            raise InvalidRequest(
                f"input_extra has {files} entries; at most {MAX_FILES} are allowed",
                param="input_extra",
            )

    async def prepare(
        self, request: InfillRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        only_computes = request.n_predict == 0
        ids, asked = await _prompt(request, engine)
        files = request.input_extra or []
        room = engine.welcome.limits.max_model_len - max(1, request.n_predict or 1)
        ids, kept = await with_files(ids, files, engine, room)
        if not ids:
            raise InvalidRequest(
                "input_prefix, prompt and input_suffix are empty; one of them must have at least"
                " one token",
                param="input_prefix",
            )
        (params,) = parameters(request, asked, engine, [ids], source="input_prefix")
        wishes = Shown(
            fields=response_fields(request),
            tokens=bool(request.return_tokens),
            truncated=kept < len(files),
        )
        spec = LlamaSpec([PromptFacts(tokens=len(ids))], params.n, not only_computes, wishes)
        return PreparedRequest([ids], [params], spec, LLAMA.own_words)


async def _prompt(request: InfillRequest, engine: EngineInfo) -> tuple[list[int], FIMRequest]:
    """What stands around the gap; a model that can't see what is after it goes on with what is in
    front."""
    before, after = (request.input_prefix or "") + (request.prompt or ""), request.input_suffix
    tokenizer, asked = engine.text.tokenizer, _asked(request)
    if after or fim_tokens(tokenizer) is not None:
        return await fim_prompt(before, after or "", asked, engine, field="input_suffix")
    limit = engine.welcome.limits.max_model_len
    ids = await encode(lambda most: tokenizer.encode(before, most=most), len(before), limit)
    return ids, asked


def _asked(request: InfillRequest) -> FIMRequest:
    """The request in the words of other endpoints."""
    asked = LLAMA.ours(request)
    if asked["temperature"] is None:
        asked["temperature"] = SEVERAL_TEMPERATURE if (request.n_cmpl or 1) > 1 else 0.0
    return FIMRequest(prompt="", **asked)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(Infill(service))]
