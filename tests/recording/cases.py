"""The requests that are recorded: every endpoint, and every kind of field that has an effect."""

from __future__ import annotations

from typing import Any

from tests.recording import generating
from tests.recording.case import GENERATE, POOL, Case
from tests.recording.errors import errors
from tests.recording.generating import MESSAGES, PROMPT, TOOLS


def cases() -> list[Case]:
    """All of them, in an order of no meaning."""
    made = [
        *_series("completion", "/v1/completions", generating.completions(), max_tokens=16),
        *_series("chat", "/v1/chat/completions", generating.chats(), max_tokens=16),
        *_series("response", "/v1/responses", generating.responses(), max_output_tokens=16),
        *_streams("completion", "/v1/completions", generating.completions(), max_tokens=16),
        *_streams("chat", "/v1/chat/completions", generating.chats(), max_tokens=16),
        *_streams("response", "/v1/responses", generating.responses(), max_output_tokens=16),
        *_tokenizing(),
        *_pooling(),
        *errors(),
        *_reading(),
    ]
    names = [case.name for case in made]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"two cases are named alike: {sorted(repeated)}")
    return made


def _series(kind: str, path: str, bodies: dict[str, dict[str, Any]], **defaults: Any) -> list[Case]:
    return [
        Case(f"{kind}: {name}", GENERATE, path, {**defaults, **body})
        for name, body in bodies.items()
    ]


NOT_STREAMED = ("best_of", "beam", "log-probabilities of the prompt")
"""What is refused in a stream, which one of the errors records."""


def _streams(
    kind: str, path: str, bodies: dict[str, dict[str, Any]], **defaults: Any
) -> list[Case]:
    options = {} if kind == "response" else {"stream_options": {"include_usage": True}}
    return [
        Case(
            f"{kind}, streamed: {name}",
            GENERATE,
            path,
            {**defaults, **body, "stream": True, **options},
        )
        for name, body in bodies.items()
        if not name.startswith(NOT_STREAMED)
    ]


def _tokenizing() -> list[Case]:
    bodies = {
        "text": {"prompt": "Hello, world! 你好 🙂"},
        "text, strings": {"prompt": PROMPT, "return_token_strs": True},
        "text, nothing added": {"prompt": PROMPT, "add_special_tokens": False},
        "messages": {"messages": MESSAGES},
        "messages, no generation prompt": {"messages": MESSAGES, "add_generation_prompt": False},
        "messages, tools": {"messages": MESSAGES, "tools": TOOLS, "return_token_strs": True},
    }
    ids = {"ids": [504, 3575, 282, 4649, 314], "special": [1, 4093, 198, 2], "none": []}
    return [
        *(
            Case(f"tokenize: {name}", GENERATE, "/tokenize", body, False)
            for name, body in bodies.items()
        ),
        *(
            Case(f"detokenize: {name}", GENERATE, "/detokenize", {"tokens": tokens}, False)
            for name, tokens in ids.items()
        ),
    ]


TEXTS = [
    "A kitten sleeps on the sofa.",
    "The stock market fell by two percent.",
    "A young cat is taking a nap.",
]


BASE64 = {"encoding_format": "base64"}


def _pooling() -> list[Case]:
    embed: dict[str, dict[str, Any]] = {
        "one": {"input": TEXTS[0]},
        "several, base64": {"input": TEXTS, **BASE64},
        "ids": {"input": [7592, 1010, 2088], **BASE64},
        "several lists of ids": {"input": [[7592, 2088], [2829]], **BASE64},
        "as it is": {"input": TEXTS[1], "normalize": False, **BASE64},
        "truncated": {
            "input": "cat " * 2000,
            "truncate_prompt_tokens": -1,
            **BASE64,
        },
        "nothing added": {"input": "cat", "add_special_tokens": False, **BASE64},
    }
    pool: dict[str, dict[str, Any]] = {
        "embed": {"input": TEXTS[:2], "task": "embed", **BASE64},
        "tokens": {"input": "A cat", "task": "token_embed", **BASE64},
        "by default": {"input": "Cats", **BASE64},
    }
    score = {"text_1": TEXTS[0], "text_2": TEXTS[1:]}
    rank = {"query": TEXTS[0], "documents": TEXTS[1:]}
    return [
        *(Case(f"embed: {name}", POOL, "/v1/embeddings", body) for name, body in embed.items()),
        *(Case(f"pool: {name}", POOL, "/pooling", body) for name, body in pool.items()),
        Case("score: one and many", POOL, "/score", score),
        Case("score: pairs", POOL, "/v1/score", {"queries": TEXTS[:2], "documents": TEXTS[1:]}),
        Case("rerank", POOL, "/rerank", rank),
        Case("rerank: best one", POOL, "/v1/rerank", {**rank, "top_n": 1}),
        Case("rerank: no documents", POOL, "/v2/rerank", {**rank, "return_documents": False}),
        Case("classify: no head", POOL, "/classify", {"input": "cat"}, False),
        Case("embed: too long", POOL, "/v1/embeddings", {"input": "cat " * 2000}, False),
        Case(
            "embed: dimensions", POOL, "/v1/embeddings", {"input": "cat", "dimensions": 9999}, False
        ),
        Case("pool server: completion", POOL, "/v1/completions", {"prompt": "a"}, False),
        Case("generate server: embedding", GENERATE, "/v1/embeddings", {"input": "a"}, False),
        Case("generate server: score", GENERATE, "/score", score, False),
    ]


def _reading() -> list[Case]:
    return [
        Case(f"{server}: GET {path}", server, path, None, False)
        for server in (GENERATE, POOL)
        for path in ("/v1/models", "/health", "/health/live", "/health/ready", "/version")
    ]
