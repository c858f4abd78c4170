"""NVIDIA's client of KServe's protocol, over gRPC: sys.argv[1] is the port's address."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from report import MAX_TOKENS, TEXTS, arguments, run

ADDRESS, MODEL, POOLING = arguments()
PROMPT = "The capital of France is"
PARAMETERS = {"max_tokens": MAX_TOKENS, "temperature": 0.0}


def _text(*texts: str) -> triton.InferInput:
    given = triton.InferInput("text_input", [len(texts)], "BYTES")
    given.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object))
    return given


def state() -> Any:
    with triton.InferenceServerClient(ADDRESS) as client:
        about = client.get_model_metadata(MODEL)
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready() and client.is_model_ready(MODEL),
            "server": client.get_server_metadata().name,
            "outputs": [each.name for each in about.outputs],
        }


def infer() -> Any:
    with triton.InferenceServerClient(ADDRESS) as client:
        result = client.infer(MODEL, [_text(PROMPT)], parameters=PARAMETERS)
        return result.as_numpy("text_output")[0].decode()


def stream() -> Any:
    streamed = triton.InferInput("stream", [1], "BOOL")
    streamed.set_data_from_numpy(np.array([True]))
    replies: queue.Queue[Any] = queue.Queue()
    texts: list[str] = []
    with triton.InferenceServerClient(ADDRESS) as client:
        client.start_stream(lambda result, error: replies.put((result, error)))
        client.async_stream_infer(
            MODEL,
            [_text(PROMPT), streamed],
            parameters=PARAMETERS,
            enable_empty_final_response=True,
        )
        while True:
            result, error = replies.get(timeout=120)
            if error is not None:
                raise error
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
            texts.append(result.as_numpy("text_output")[0].decode())
        client.stop_stream()
    return "".join(texts)


def embeddings() -> Any:
    with triton.InferenceServerClient(POOLING) as client:
        return client.infer(MODEL, [_text(*TEXTS)]).as_numpy("embedding").tolist()


run({"state": state, "infer": infer, "stream": stream, "embeddings": embeddings})
