"""lm-evaluation-harness: answers' log-likelihoods by echoed prompts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.prepare import prepare
from penstock.prepare.folder import TOKENIZER
from testing.serving import Server
from tests.system.clients.installed import run_script

pytestmark = [pytest.mark.timeout(600)]

QUESTIONS = [
    {"country": "France", "choices": [" Paris", " a banana"], "label": 0},
    {"country": "Germany", "choices": [" seventeen", " Berlin"], "label": 1},
    {"country": "Italy", "choices": [" Rome", " the sea", " Lisbon"], "label": 0},
]
TASK = """\
task: capitals
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
output_type: multiple_choice
test_split: test
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model's tokenizer as transformers wants it, and the task."""
    shutil.copy(prepare("smollm2-135m") / TOKENIZER, tmp_path / "tokenizer.json")
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (tmp_path / "capitals.yaml").write_text(TASK.format(questions=questions))
    return tmp_path


def test_likelihoods_of_answers(server: Server, folder: Path) -> None:
    told = run_script(
        "lm_eval_client",
        server.url,
        server.model,
        "",
        LM_EVAL_FOLDER=str(folder),
        HF_HOME=str(folder / "cache"),
    )
    result = told.get("capitals") or told[""]
    assert "error" not in result, result["error"]
    got = result["got"]
    assert got["accuracy"] == 1.0
    for question, likelihoods in zip(QUESTIONS, got["loglikelihoods"], strict=True):
        asked = [likelihood(server, question, choice) for choice in question["choices"]]
        assert likelihoods == pytest.approx(asked, abs=1e-4)


def likelihood(server: Server, question: dict[str, Any], choice: str) -> float:
    """The likelihood of an answer, one request each, the prompt as text and echoed alone."""
    prompt = f"The capital of {question['country']} is"
    body = {
        "model": server.model,
        "prompt": prompt + choice,
        "max_tokens": 0,
        "echo": True,
        "logprobs": 0,
        "temperature": 0,
    }
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    logprobs = reply["choices"][0]["logprobs"]
    pairs = zip(logprobs["text_offset"], logprobs["token_logprobs"], strict=True)
    return sum(logprob for offset, logprob in pairs if offset >= len(prompt))
