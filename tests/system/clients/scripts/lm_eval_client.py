"""lm-evaluation-harness, `local-completions`, on a task of our own: log-probabilities by echo.

Prints the log-likelihood of each answer, which the test compares with what transformers gives.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval
from lm_eval.tasks import TaskManager
from report import arguments, run

URL, MODEL, _ = arguments()
FOLDER = Path(os.environ["LM_EVAL_FOLDER"])
"""Holds the tokenizer, and the task: capitals.yaml with its questions."""


def capitals() -> Any:
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": MODEL,
            "base_url": f"{URL}/v1/completions",
            "tokenizer_backend": "huggingface",
            "tokenizer": str(FOLDER),
            "tokenized_requests": True,
            "num_concurrent": 2,
            "max_retries": 1,
        },
        tasks=["capitals"],
        task_manager=TaskManager(include_path=str(FOLDER), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = results["samples"]["capitals"]
    return {
        "accuracy": results["results"]["capitals"]["acc,none"],
        "loglikelihoods": [
            [answer[0][0] for answer in sample["resps"]]
            for sample in sorted(samples, key=lambda sample: sample["doc_id"])
        ],
    }


print(json.dumps({"version": lm_eval.__version__}), file=sys.stderr)
run({"capitals": capitals})
