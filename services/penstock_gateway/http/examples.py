"""Request bodies that work unchanged, by path: the page /docs sends them unless they are edited.
None names a model, so each works with any model."""

from __future__ import annotations

from typing import Any

_DOCUMENTS = ["A young cat naps.", "The market fell."]
_SCORE = {"text_1": "A kitten sleeps.", "text_2": _DOCUMENTS}
_RERANK = {"query": "cats", "documents": _DOCUMENTS, "top_n": 1}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/batches": {"input_file_id": "file-ID", "endpoint": "/v1/completions"},
    "/v1/messages/batches": {
        "requests": [
            {
                "custom_id": "1",
                "params": {
                    "max_tokens": 32,
                    "messages": [{"role": "user", "content": "Name a river in Europe."}],
                },
            }
        ]
    },
    "/v1/load_lora_adapter": {"lora_name": "sql", "lora_path": "sql"},
    "/v1/unload_lora_adapter": {"lora_name": "sql"},
    "/collective_rpc": {"method": "memory"},
    "/update_weights_from_disk": {"model_path": "checkpoint"},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 32,
    },
    "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    "/v1/responses/compact": {"input": "Name a river in Europe."},
    "/v1/responses/input_tokens": {"input": "Name a river in Europe."},
    "/v1/conversations": {"items": [{"role": "user", "content": "Name a river in Europe."}]},
    "/v1/conversations/{id}": {"metadata": {"topic": "rivers"}},
    "/v1/conversations/{id}/items": {"items": [{"role": "user", "content": "And another."}]},
    "/v1/responses": {"input": "Name a river in Europe.", "max_output_tokens": 32},
    "/v1/messages": {
        "max_tokens": 32,
        "messages": [{"role": "user", "content": "Name a river in Europe."}],
    },
    "/v1/messages/count_tokens": {
        "messages": [{"role": "user", "content": "Name a river in Europe."}]
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "Name a river in Europe."}],
        "options": {"num_predict": 32},
        "stream": False,
    },
    "/api/generate": {
        "prompt": "Name a river in Europe.",
        "options": {"num_predict": 32},
        "stream": False,
    },
    "/api/embed": {"input": ["A kitten sleeps.", "A young cat naps."]},
    "/api/embeddings": {"prompt": "A kitten sleeps."},
    "/api/show": {},
    "/tokenize": {"prompt": "The capital of France is"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/embeddings": {"input": ["A kitten sleeps.", "A young cat naps."]},
    "/pooling": {"input": "A kitten sleeps."},
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/classify": {"input": ["The film was wonderful.", "I fell asleep."]},
}
