"""A small labelled set: sections of this repository's guides, and questions that one of them
answers. The questions were written by hand, mostly in other words than the sections'."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadtest.report import SetupError

WORDS = 50
"""Most words of a passage: as many as the smaller model takes of any of them."""
FENCE = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)
LEAST = 8
"""Words of a passage: a section of less only leads to others."""

QUESTIONS: dict[str, str] = {
    "How do I let a caller use the server with a secret?": "keys.md#A file of keys",
    "limit how much each customer may ask for": "keys.md#Limits",
    "two fine-tuned variants of the same base model in one process": "adapters.md#Names",
    "swap in a newly trained LoRA without stopping": "adapters.md#Load, replace, unload",
    "half price jobs that run overnight from a file of requests": "batches.md#Over HTTP",
    "will my model fit into RAM?": "choosing-a-model.md#How much memory",
    "is 4 bit good enough or should I take 8 bit?": "choosing-a-model.md#Which quantisation",
    "use the terminal coding assistant from Anthropic with my own model": "clients.md#Claude Code",
    "chat front end with accounts in the browser": "clients.md#Open WebUI",
    "I have a script with vLLM's Python classes": "coming-from.md#Scripts",
    "docker image as an unprivileged user without capabilities": "containers.md#Security",
    "similarity of token vectors, ColBERT": "embeddings.md#Late interaction",
    "weights of words instead of dense vectors": "embeddings.md#Sparse vectors",
    "order documents by how well they answer a query": "embeddings.md#Rerank",
    "find entities such as people and places in a text": "embeddings.md#Classes",
    "add more replicas when the queue grows": "kubernetes.md#Scale with the load",
    "keep the cache of prompts after a restart": "kv-on-disk.md#KV cache on disk",
    "protect cached prompts at rest": "kv-on-disk.md#Encryption",
    "separate machines for prefill and decoding": "kv-transfer.md#Prompts apart from answers",
    "which recordings can be sent in a message, mp3 or wav?": "media.md#Sounds",
    "attach a PDF to a question": "media.md#Documents",
    "may the server download an image from any website?": "media.md#Fetching by URL",
    "how many frames of a clip does the model look at?": "media.md#Videos",
    "AWQ and GPTQ checkpoints": "models.md#Quantised checkpoints",
    "serve an architecture that isn't in the list": "models.md#Models that no family describes",
    "the template of the conversation is missing or wrong": "models.md#Chat templates",
    "what happened to one slow call": "observability.md#Why was this request slow?",
    "export spans to a collector": "observability.md#Traces",
    "prove later that a given model wrote this text": "receipts.md#Receipts",
    "the machine lost a process in the middle of an answer": (
        "recovery.md#What happens when something dies"
    ),
    "new version without downtime": "recovery.md#Upgrade without interruption",
    "push new parameters from reinforcement learning": "replace-weights.md#Replace weights",
    "urgent requests before others": "scheduling.md#Priorities",
    "one user must not starve the rest": "scheduling.md#Fair shares",
    "give up when an answer comes too late": "scheduling.md#Deadlines",
    "run it under systemd": "serve.md#As a service",
    "encrypt traffic with a certificate": "serve.md#HTTPS",
    "load a model only when somebody asks for it": "several-models.md#Models on demand",
    "how many servers do I need for this load?": "simulation.md#Plan",
    "guess several tokens ahead to be faster": "speculation.md#Methods",
    "continue a conversation whose history the server keeps": "stored-responses.md#Conversations",
    "force the output to match a JSON schema": ("structured-output.md#JSON that follows a schema"),
    "let the model call functions": "structured-output.md#Tools",
    "times at which each word was said": "transcription.md#Word times",
    "captions while somebody is still speaking": "transcription.md#Live transcription",
    "the process ends at once when I start it": "troubleshooting.md#It doesn't start",
}
"""The page and the heading of the section that answers each question."""


def passages(guides: Path) -> dict[str, str]:
    """Texts of all sections, by `page#heading`. Raises SetupError for a question whose section is
    gone."""
    found: dict[str, str] = {}
    for page in sorted(guides.glob("*.md")):
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        parts = HEADING.split(text)
        title = parts[1]
        for heading, body in zip(parts[1::2], parts[2::2], strict=True):
            words = re.sub(r"[|`*]|\]\([^)]*\)|^-+$", " ", body).replace("[", "").split()
            if len(words) < LEAST:
                continue
            head = title if heading == title else f"{title}: {heading}"
            found[f"{page.name}#{heading}"] = f"{head}. {' '.join(words[:WORDS])}"
    gone = sorted(set(QUESTIONS.values()) - set(found))
    if gone:
        raise SetupError(f"no section of the guides is called {', '.join(gone)}")
    return found


def orders(questions: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """int64 [questions, texts]: places of texts, best first. Both are rows of length 1."""
    return np.argsort(-(questions @ texts.T), axis=1, kind="stable")


def reordered(first: np.ndarray, by: np.ndarray, most: int) -> np.ndarray:
    """Each order, but its first so many in another order."""
    rows = []
    for order, other in zip(first, by, strict=True):
        kept = set(order[:most].tolist())
        rows.append([at for at in other.tolist() if at in kept] + order[most:].tolist())
    return np.array(rows)


def quality(order: np.ndarray, wanted: Sequence[int]) -> dict[str, float]:
    """nDCG@10, and the share of questions whose section is first, and among the first ten."""
    places = [row.tolist().index(at) for row, at in zip(order, wanted, strict=True)]
    gains = [1 / math.log2(place + 2) if place < 10 else 0.0 for place in places]
    count = len(places)
    return {
        "ndcg_at_10": sum(gains) / count,
        "first": sum(place == 0 for place in places) / count,
        "recall_at_10": sum(place < 10 for place in places) / count,
    }
