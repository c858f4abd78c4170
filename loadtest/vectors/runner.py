"""One library's process: `python runner.py LIBRARY MODEL THREADS`, in that library's environment.

Nothing but the standard library is imported before the library asked for. It writes a line with
its versions when the model is loaded, and answers each line, `{"texts": [...]}`, with one:
`{"seconds": …, "vectors": [...]}`, each vector as base64 of float32. What the library itself
prints goes to stderr.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Embed = Callable[[list[str]], Iterable[Any]]
"""Vectors of texts, of length 1."""


def _penstock(dtype: str) -> Callable[[str, int], tuple[Embed, list[str]]]:
    def make(model: str, threads: int) -> tuple[Embed, list[str]]:
        from penstock import LLM

        llm = LLM(model, dtype=dtype)

        def embed(texts: list[str]) -> Iterable[Any]:
            return [each.outputs.embedding for each in llm.embed(texts, use_tqdm=False)]

        return embed, ["torch"]

    return make


def _penstock_http(model: str, threads: int) -> tuple[Embed, list[str]]:
    """A server; all texts of a call are in one request to /v1/embeddings."""
    import atexit
    import socket
    import subprocess
    import urllib.request

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", model, "--port", str(port)], stdout=2
    )
    atexit.register(server.wait, 60)
    atexit.register(server.terminate)  # The last one is called first.

    def call(path: str, body: bytes | None = None) -> bytes:
        asked = urllib.request.Request(url + path, body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=600) as reply:
            found: bytes = reply.read()
        return found

    while True:
        try:
            call("/health/ready")
            break
        except OSError:
            if server.poll() is not None:
                raise
            time.sleep(0.2)  # A server says nothing by itself when it becomes ready.
    name = json.loads(call("/v1/models"))["data"][0]["id"]

    def embed(texts: list[str]) -> Iterable[Any]:
        body = {"model": name, "input": texts, "encoding_format": "base64"}
        found = json.loads(call("/v1/embeddings", json.dumps(body).encode()))["data"]
        return [_floats(base64.b64decode(each["embedding"])) for each in found]

    return embed, ["torch"]


def _floats(data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, "<f4")


def _sentence_transformers(model: str, threads: int) -> tuple[Embed, list[str]]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded = SentenceTransformer(model, device="cpu", local_files_only=True)

    def embed(texts: list[str]) -> Iterable[Any]:
        found: Iterable[Any] = loaded.encode(
            texts, normalize_embeddings=True, show_progress_bar=False
        )
        return found

    return embed, ["sentence-transformers", "torch", "transformers"]


def _fastembed(model: str, threads: int) -> tuple[Embed, list[str]]:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    folder = _as_onnx(Path(model))
    width = json.loads((Path(model) / "config.json").read_text())["hidden_size"]
    TextEmbedding.add_custom_model(
        model="loadtest/vectors",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="loadtest/vectors"),
        dim=width,
        model_file="model.onnx",
    )
    loaded = TextEmbedding("loadtest/vectors", threads=threads, specific_model_path=str(folder))

    def embed(texts: list[str]) -> Iterable[Any]:
        # Beside one another in a batch are texts of about the same length, as sentence-transformers
        # has it: fastembed itself fills all of a batch up to the longest.
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        made = dict(
            zip(order, loaded.embed([texts[at] for at in order], batch_size=32), strict=True)
        )
        return [made[at] for at in range(len(texts))]

    return embed, ["fastembed", "onnxruntime"]


def _as_onnx(model: Path) -> Path:
    """The model's folder with its graph in onnxruntime's format, made once."""
    import shutil
    import tempfile

    import torch
    from transformers import AutoModel

    folder = Path(tempfile.gettempdir()) / f"penstock-onnx-{os.getuid()}" / model.name
    target = folder / "model.onnx"
    if target.is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, folder)
    special = model / "special_tokens_map.json"
    if special.is_file():
        shutil.copy(special, folder)
    loaded = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([[0, 5, 6, 2]] * 2)
    given = (ids, torch.ones_like(ids))
    axes = {0: "texts", 1: "tokens"}
    with torch.no_grad():
        torch.onnx.export(
            rows_of(loaded.eval()),
            given,
            str(target),
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state"],
            dynamic_axes=dict.fromkeys(("input_ids", "attention_mask", "last_hidden_state"), axes),
            dynamo=False,
        )
    return folder


def rows_of(model: Any) -> Any:
    """A module that gives the last layer's rows, and nothing else."""
    import torch

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    return Rows()


# Several numbers of each text's tokens, instead of one vector (see tokens.py).


def _penstock_tokens(task: Any, role: Any) -> Callable[[str, int], tuple[Embed, list[str]]]:
    def make(model: str, threads: int) -> tuple[Embed, list[str]]:
        from penstock import LLM, PoolingParams

        llm = LLM(model, dtype="float32")
        params = PoolingParams(input_type=role)

        def embed(texts: list[str]) -> Iterable[Any]:
            found = llm.encode(texts, params, pooling_task=task, use_tqdm=False)
            if task == "embed_sparse":
                return [_weights(each.outputs.indices, each.outputs.data) for each in found]
            return [each.outputs.data for each in found]

        return embed, ["torch"]

    return make


def _weights(ids: Iterable[int], weights: Iterable[float]) -> Any:
    """Token ids, ascending, then the weight of each."""
    import numpy as np

    return np.array(sorted(zip(map(int, ids), map(float, weights), strict=True))).T


def _pylate(*, is_query: bool) -> Callable[[str, int], tuple[Embed, list[str]]]:
    def make(model: str, threads: int) -> tuple[Embed, list[str]]:
        import torch
        from pylate.models import ColBERT

        torch.set_num_threads(threads)
        loaded = ColBERT(model, device="cpu", local_files_only=True)

        def embed(texts: list[str]) -> Iterable[Any]:
            found: Iterable[Any] = loaded.encode(texts, is_query=is_query, show_progress_bar=False)
            return found

        return embed, ["pylate", "sentence-transformers", "torch", "transformers"]

    return make


def _flag_embedding(kind: str) -> Callable[[str, int], tuple[Embed, list[str]]]:
    def make(model: str, threads: int) -> tuple[Embed, list[str]]:
        import torch
        from FlagEmbedding import BGEM3FlagModel

        torch.set_num_threads(threads)
        loaded = BGEM3FlagModel(model, use_fp16=False, devices="cpu")
        wanted = {f"return_{each}": each == kind for each in ("dense", "sparse", "colbert_vecs")}

        def embed(texts: list[str]) -> Iterable[Any]:
            found = loaded.encode(texts, batch_size=32, max_length=512, **wanted)
            if kind == "sparse":
                return [_weights(each, each.values()) for each in found["lexical_weights"]]
            rows: Iterable[Any] = found["dense_vecs" if kind == "dense" else "colbert_vecs"]
            return rows

        return embed, ["FlagEmbedding", "torch", "transformers"]

    return make


LIBRARIES: dict[str, Callable[[str, int], tuple[Embed, list[str]]]] = {
    "penstock": _penstock("auto"),
    "penstock_float32": _penstock("float32"),
    "penstock_http": _penstock_http,
    "sentence_transformers": _sentence_transformers,
    "fastembed": _fastembed,
    "penstock_documents": _penstock_tokens("token_embed", "document"),
    "penstock_queries": _penstock_tokens("token_embed", "query"),
    "penstock_dense": _penstock_tokens("embed", None),
    "penstock_tokens": _penstock_tokens("token_embed", None),
    "penstock_sparse": _penstock_tokens("embed_sparse", None),
    "pylate_documents": _pylate(is_query=False),
    "pylate_queries": _pylate(is_query=True),
    "m3_dense": _flag_embedding("dense"),
    "m3_tokens": _flag_embedding("colbert_vecs"),
    "m3_sparse": _flag_embedding("sparse"),
}


def main() -> None:
    """Serves standard input until it ends."""
    library, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    embed, distributions = LIBRARIES[library](model, threads)
    versions = {name: importlib.metadata.version(name) for name in distributions}
    print(json.dumps({"versions": versions}), file=out, flush=True)
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        began = time.perf_counter()
        vectors = list(embed(texts))
        seconds = time.perf_counter() - began
        written = [base64.b64encode(_float32(each)).decode() for each in vectors]
        print(json.dumps({"seconds": seconds, "vectors": written}), file=out, flush=True)


def _float32(vector: Any) -> bytes:
    import numpy as np

    return np.asarray(vector, "<f4").tobytes()


if __name__ == "__main__":
    main()
