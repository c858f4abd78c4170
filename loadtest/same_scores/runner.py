"""lm-evaluation-harness on one server, in its own environment: `python runner.py ORDER.json`.

Writes into the file that the order names the scores of each task, and every log-probability that
was heard, by request. Of Penstock's code nothing is imported, but for `library`.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

ORDER = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
"""kind: completions, chat or library.  tasks: their names.  folder: of tasks and tokenizer.
url, model: the server's.  at_once: requests in flight.  window: tokens that are scored at once.
as_text: prompts are sent as text.  limit: documents of each task, or null.  output: the file.
packages: a folder to import lm_eval from, or null."""
if ORDER["packages"]:
    sys.path.append(ORDER["packages"])

import lm_eval  # noqa: E402
from lm_eval.models.openai_completions import (  # noqa: E402
    LocalChatCompletion,
    LocalCompletionsAPI,
)
from lm_eval.tasks import TaskManager  # noqa: E402

HEARD: dict[str, list[Any]] = {}
"""For each request: the text, its tokens' log-probabilities, and those of the likeliest."""
UNCOMPARED = ("model", "stop")
"""Fields of requests that aren't compared: lm_eval adds the end token to the stop strings where one
is in flight at a time, and leaves it out where several are."""
_asked: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("asked")


def hear(request: Any, text: str, own: list[float | None], best: list[float | None]) -> None:
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    HEARD[key] = [text, own, best]


def hear_all(outputs: dict[str, Any] | list[dict[str, Any]]) -> None:
    """The body of the request is what was asked last in this task."""
    body = {name: each for name, each in _asked.get().items() if name not in UNCOMPARED}
    for output in outputs if isinstance(outputs, list) else [outputs]:
        for choice in output["choices"]:
            hear(body, *_told(choice))


def _told(choice: dict[str, Any]) -> tuple[str, list[float | None], list[float | None]]:
    logprobs = choice["logprobs"]
    if "message" in choice:
        content = logprobs["content"]
        best = [max(top["logprob"] for top in each["top_logprobs"]) for each in content]
        return choice["message"]["content"], [each["logprob"] for each in content], best
    best = [max(top.values()) if top else None for top in logprobs["top_logprobs"]]
    return choice["text"], logprobs["token_logprobs"], best


class HeardCompletions(LocalCompletionsAPI):
    def _create_payload(self, *args: Any, **keywords: Any) -> dict[str, Any]:
        body = super()._create_payload(*args, **keywords)
        _asked.set(body)
        return body

    @staticmethod
    def parse_logprobs(outputs: Any, **keywords: Any) -> Any:
        hear_all(outputs)
        return LocalCompletionsAPI.parse_logprobs(outputs, **keywords)

    @staticmethod
    def parse_generations(outputs: Any, **keywords: Any) -> Any:
        hear_all(outputs)
        return LocalCompletionsAPI.parse_generations(outputs, **keywords)


class HeardChat(LocalChatCompletion):
    def _create_payload(self, *args: Any, **keywords: Any) -> dict[str, Any]:
        body = super()._create_payload(*args, **keywords)
        _asked.set(body)
        return body

    def parse_generations(self, outputs: Any, **keywords: Any) -> Any:
        hear_all(outputs)
        return super().parse_generations(outputs, **keywords)


def served() -> Any:
    chat = ORDER["kind"] == "chat"
    common = {
        "model": ORDER["model"],
        "base_url": ORDER["url"] + ("/v1/chat/completions" if chat else "/v1/completions"),
        "num_concurrent": ORDER["at_once"],
        "max_retries": 1,
        "timeout": 3600,
    }
    if chat:
        return HeardChat(**common)
    return HeardCompletions(
        **common,
        tokenizer_backend="huggingface",
        tokenizer=ORDER["folder"],
        tokenized_requests=not ORDER["as_text"],
        max_length=ORDER["window"],
    )


def main() -> None:
    if ORDER["kind"] == "library":
        from library import PenstockLM

        model: Any = PenstockLM(ORDER["model"], ORDER["folder"], ORDER["window"], hear)
    else:
        model = served()
    found = lm_eval.simple_evaluate(
        model=model,
        tasks=ORDER["tasks"],
        task_manager=TaskManager(include_path=ORDER["folder"], include_defaults=False),
        apply_chat_template=ORDER["kind"] == "chat",
        limit=ORDER["limit"],
        log_samples=False,
        bootstrap_iters=0,
        cache_requests=False,
    )
    scores = {
        f"{task} {name.partition(',')[0]}": value
        for task, values in found["results"].items()
        for name, value in values.items()
        if isinstance(value, float) and "stderr" not in name
    }
    result = {"version": lm_eval.__version__, "scores": scores, "heard": HEARD}
    Path(ORDER["output"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
