"""What a request says besides its prompt: fields that the generating endpoints share, and from
headers and body its tenant, priority, deadline and conversation.

Every field that OpenAI and vLLM document is here or in the endpoint's own struct.  There are three
kinds: those that work; those without effect on the output, accepted as they come; and those that
nothing does yet, accepted only at their neutral value (see `check_unsupported`).

With API keys, the key's entry says which tenant sent the request and what that tenant may use.
Without them, everybody who sends the same key is one tenant, whatever the key. Only a name or a
digest is passed on, so no message and no log contains a key, and nothing else that a client sends
can make it another tenant.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from starlette.types import Scope

from penstock.errors import InvalidRequest
from penstock.protocol.common import Grant, SessionTerms
from penstock.request.api_keys import TENANT_DIGITS, digest_of
from penstock.request.terms import MAX_DEADLINE_MS, Terms, checked_session
from penstock_gateway.http.errors import clip
from penstock_gateway.keys.ring import current, key_sent
from penstock_gateway.request import tokenising
from penstock_gateway.request.structure import ResponseFormat, StructuredFields
from penstock_gateway.request.tokenising import Prediction


class KVHint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is expected of the session. resume_within_s: seconds after the answer in which its next
    request should come, as after a tool's run."""

    resume_within_s: float


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer whose last tokens are one pattern, min_count times in a row, ends with the finish
    reason `repetition`. max_pattern_size, min_pattern_size: tokens of the pattern."""

    max_pattern_size: int
    min_count: int
    min_pattern_size: Whole = None


class SessionFields(Protocol):
    """What a generating request's body may say of it."""

    @property
    def session_id(self) -> str | None: ...

    @property
    def kv_retention_seconds(self) -> float | None: ...

    @property
    def kv_hint(self) -> KVHint | None: ...


def session_of(request: SessionFields, header: str | None) -> SessionTerms | None:
    """The conversation that a request is a turn of; None if it is of none. header: the value of
    x-session-id, before which the body's field counts. Raises InvalidRequest."""
    hint = request.kv_hint
    return checked_session(
        request.session_id or header,
        request.kv_retention_seconds,
        None if hint is None else hint.resume_within_s,
    )


class TermFields(Protocol):
    """What every request's body may say of these."""

    @property
    def cache_salt(self) -> str | None: ...

    @property
    def priority(self) -> int | None: ...

    @property
    def deadline_ms(self) -> int | None: ...


class TermsHeaders(NamedTuple):
    """tenant: empty for nobody in particular.  grant: what it may have; None: as the engine
    core has it.  deadline_ms: of x-deadline-ms.  background: nobody waits for the answer.
    session_id: of x-session-id.  receipt: of x-penstock-receipt; empty for none.  last_event_id,
    idempotency_key: of these headers.  shares: what the API key's entry says of identical requests;
    None: nothing."""

    tenant: str
    grant: Grant | None
    deadline_ms: int | None
    background: bool = False
    session_id: str | None = None
    receipt: str = ""
    last_event_id: str | None = None
    idempotency_key: str | None = None
    shares: bool | None = None

    @property
    def repeats(self) -> bool:
        """Whether they may be of a request that was sent before."""
        return self.last_event_id is not None or self.idempotency_key is not None


def terms_headers(scope: Scope) -> TermsHeaders:
    """Raises InvalidRequest for a deadline that is none."""
    deadline_ms = session_id = last_event_id = key = None
    receipt = ""
    for name, value in scope["headers"]:
        if name == b"x-deadline-ms":
            deadline_ms = _milliseconds(value)
        elif name == b"x-session-id":
            session_id = value.decode("latin-1")
        elif name == b"x-penstock-receipt":
            receipt = value.decode("latin-1")
        elif name == b"last-event-id":
            last_event_id = value.decode("latin-1")
        elif name == b"idempotency-key":
            key = value.decode("latin-1")
    caller = current.get()
    tenant, grant = tenant_of(scope), None if caller.key is None else caller.key.grant
    tokenising.tenant.set(tenant)
    return TermsHeaders(
        tenant,
        grant,
        deadline_ms,
        caller.background,
        session_id,
        receipt,
        last_event_id,
        key,
        None if caller.key is None else caller.key.share_identical_requests,
    )


def tenant_of(scope: Scope) -> str:
    """The tenant of the request; empty for none."""
    caller = current.get()
    if caller.key is not None:
        return caller.key.tenant_name
    if caller.tenant is not None:
        return caller.tenant
    sent = key_sent(scope)
    return digest_of(sent).hex()[:TENANT_DIGITS] if sent else ""


def request_terms(request: TermFields, headers: TermsHeaders, arrived: float) -> Terms:
    """arrived: when the request's headers had come, monotonic; from then on its time runs.

    Of two deadlines the earlier counts.  Raises InvalidRequest.
    """
    given = [ms for ms in (headers.deadline_ms, request.deadline_ms) if ms is not None]
    terms = Terms.checked(
        tenant=headers.tenant,
        priority=request.priority or 0,
        deadline_ms=min(given, default=None),
        cache_salt=request.cache_salt or "",
    )
    deadline = None if terms.deadline is None else arrived + min(given) / 1000
    return msgspec.structs.replace(
        terms, deadline=deadline, grant=headers.grant, background=headers.background
    )


def connection_terms(scope: Scope) -> Terms:
    """Returns the terms of what is asked over a WebSocket, without deadlines. Raises
    InvalidRequest."""
    headers = terms_headers(scope)
    terms = Terms.checked(tenant=headers.tenant, priority=0, deadline_ms=None, cache_salt="")
    return msgspec.structs.replace(terms, grant=headers.grant)


def _milliseconds(value: bytes) -> int:
    if not value.isdigit() or len(value) > 12 or not 0 < int(value) <= MAX_DEADLINE_MS:
        shown = clip(value.decode("latin-1"), 40)
        raise InvalidRequest(
            f"x-deadline-ms is {shown}; it must be a whole number in [1, {MAX_DEADLINE_MS}]",
            param="x-deadline-ms",
        )
    return int(value)


Number = float | None
Whole = int | None
Flag = bool | None
Text = str | None
Object = dict[str, Any] | None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """include_usage: a last chunk with the usage.  continuous_usage_stats: usage so far in each.
    include_obfuscation: accepted, without effect.  resumable: events have ids, from which the
    stream can go on elsewhere (Penstock's own)."""

    include_usage: Flag = None
    continuous_usage_stats: Flag = None
    include_obfuscation: Flag = None
    resumable: Flag = None


class RequestFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every generating endpoint takes: for whom, how soon, and how to reply."""

    # These work.
    model: Text = None
    stream: Flag = None
    stream_options: StreamOptions | None = None
    request_id: Text = None
    cache_salt: Text = None
    """Only requests with the same salt share KV blocks, and only within one API key."""
    priority: Whole = None
    deadline_ms: Whole = None
    """Milliseconds that the whole answer may take (Penstock's own)."""
    session_id: Text = None
    """The conversation whose turn this is: its KV blocks are kept for the next one."""
    kv_retention_seconds: Number = None
    """For how long, after this answer (Penstock's own)."""
    kv_hint: KVHint | None = None
    """When the next turn is expected (Penstock's own)."""

    # Without effect on the output.
    user: Text = None
    metadata: Object = None
    store: Flag = None
    service_tier: Text = None
    safety_identifier: Text = None
    prompt_cache_key: Text = None
    prompt_cache_retention: Text = None
    prompt_cache_options: Any = None
    moderation: Any = None


class GenerateFields(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What completions and chat share."""

    # These work.
    n: Whole = None
    temperature: Number = None
    top_p: Number = None
    top_k: Whole = None
    min_p: Number = None
    seed: Whole = None
    random_seed: Whole = None
    """Mistral's word for seed."""
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: Whole = None
    min_tokens: Whole = None
    ignore_eos: Flag = None
    repetition_detection: RepetitionDetection | None = None
    """Ends an answer that repeats itself (vLLM's field)."""
    thinking_token_budget: Whole = None
    """Most tokens of thoughts (vLLM's field); -1: any number."""
    skip_special_tokens: Flag = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    repetition_penalty: Number = None
    logit_bias: dict[str, float] | None = None
    """A bias by token id, which is written as a string: JSON has no other keys."""
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: Flag = None
    prompt_logprobs: Whole = None
    logprob_token_ids: list[int] | None = None
    """Ids whose log-probabilities are shown in place of the likeliest (vLLM's field)."""
    echo: Flag = None
    best_of: Whole = None
    use_beam_search: Flag = None
    length_penalty: Number = None
    """Exponent of the length in the score of a beam; for beam search only."""
    truncate_prompt_tokens: Whole = None
    """Keeps the prompt's last tokens only; -1: as many as the context has room for."""
    truncation_side: Literal["left", "right"] | None = None
    """Where truncate_prompt_tokens cuts; right: it keeps the first tokens."""
    return_tokens_as_token_ids: Flag = None
    """In logprobs a token is written as token_id:5."""
    return_token_ids: Flag = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredFields | None = None
    structural_tag: str | dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: Text = None
    guided_choice: list[str] | None = None
    guided_grammar: Text = None
    grammar: Text = None
    """llama.cpp's, with json_schema."""
    json_schema: Object = None

    prediction: Prediction | None = None
    penstock_receipt: Text = None
    """What the header x-penstock-receipt says, for who can send none, as a line of a batch."""

    # Without effect on the output.
    spaces_between_special_tokens: Flag = None
    guided_decoding_backend: Text = None
    guided_whitespace_pattern: Text = None
    media_io_kwargs: Object = None
    mm_processor_kwargs: Object = None
    return_token_offsets: Flag = None
    return_mm_kwargs: Flag = None
    cache_prompt: Flag = None
    """llama.cpp's: whether the prompt's KV is kept and reused; here it always is."""
    id_slot: Whole = None
    timings_per_token: Flag = None
    return_progress: Flag = None
    samplers: list[str] | str | None = None
    """llama.cpp's: their order, which here is always the same."""
    keep_alive: Any = None
    """Ollama's: how long the model stays loaded."""

    # Only at their neutral value.
    logits_processors: Any = None
    watermarking: Flag = None
    stream_interval: Whole = None
    routed_experts_prompt_start: Whole = None
    kv_transfer_params: Object = None
    ec_transfer_params: Object = None
    vllm_xargs: Object = None

    def __post_init__(self) -> None:
        if self.random_seed is None:
            return
        if self.seed not in (None, self.random_seed):
            raise ValueError(
                f"seed is {self.seed} and random_seed is {self.random_seed}; they mean the same: "
                "set only one of them"
            )
        msgspec.structs.force_setattr(self, "seed", self.random_seed)
        msgspec.structs.force_setattr(self, "random_seed", None)

    @property
    def searches(self) -> bool:
        """Whether its choices may be the best of a larger number."""
        return bool(self.use_beam_search) or self.best_of is not None


class NamedRequest(Protocol):
    """A body that may name its request."""

    @property
    def request_id(self) -> str | None: ...


def check_request_id(request: NamedRequest) -> None:
    """Raises InvalidRequest for a request_id that doesn't fit into ids and logs."""
    name = request.request_id
    if name is not None and not (1 <= len(name) <= 128 and name.isascii() and name.isprintable()):
        raise InvalidRequest(
            "request_id must be 1 to 128 printable ASCII characters", param="request_id"
        )


class UnsupportedField(NamedTuple):
    """A known field that does nothing yet. field: its path, through objects that are there."""

    field: str
    values: tuple[Any, ...] = ()
    """Values other than null that ask for nothing, and so are accepted."""


COMMON = (
    UnsupportedField("logits_processors", ([],)),
    UnsupportedField("watermarking", (False,)),
    UnsupportedField("stream_interval", (1,)),
    UnsupportedField("routed_experts_prompt_start", (0,)),
    UnsupportedField("kv_transfer_params", ({},)),
    UnsupportedField("ec_transfer_params", ({},)),
    UnsupportedField("vllm_xargs", ({},)),
    UnsupportedField("moderation"),
)

VERBOSITIES = ("low", "medium", "high")


def check_verbosity(field: str, value: str | None) -> None:
    """Raises InvalidRequest for an unknown verbosity. A known one has no effect: no model that is
    served knows it."""
    if value is not None and value not in VERBOSITIES:
        raise InvalidRequest(
            f"{field} is {clip(value)}; allowed: {', '.join(VERBOSITIES)}",
            param=field,
            code="invalid_value",
        )


def check_unsupported(request: RequestFields, rules: tuple[UnsupportedField, ...]) -> None:
    """Raises InvalidRequest naming the first field with a value that is not supported yet."""
    for field, values in rules:
        value = attrgetter(field)(request)
        if value is not None and value not in values:
            allowed = " or ".join([*map(clip, values), "null"])
            raise InvalidRequest(
                f"{field} is {clip(value)}, which is not supported yet; allowed: {allowed}",
                param=field,
                code="unsupported_value",
            )
