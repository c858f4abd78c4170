"""aiperf: NVIDIA's load generator, by its command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.prepare import prepare
from penstock.prepare.folder import TOKENIZER
from testing.serving import Server
from tests.system.clients.installed import clean_environment, venv

pytestmark = [pytest.mark.timeout(600)]

REQUESTS, OUTPUT_TOKENS = 6, 12
TOKENIZER_FOLDER = "the/tokenizer"
"""It looks a name up in the hub's cache first, which refuses absolute paths."""


def test_its_counts_are_right(server: Server, tmp_path: Path) -> None:
    tokenizer = tmp_path / TOKENIZER_FOLDER
    tokenizer.mkdir(parents=True)
    shutil.copy(prepare("smollm2-135m") / TOKENIZER, tokenizer / "tokenizer.json")
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(about))
    command = [venv() / "bin" / "aiperf", "profile", "--model", server.model, "--url", server.url]
    command += ["--endpoint-type", "chat", "--streaming"]
    command += ["--tokenizer", TOKENIZER_FOLDER, "--use-server-token-count"]
    command += ["--concurrency", "2", "--request-count", str(REQUESTS), "--ui", "none"]
    command += ["--synthetic-input-tokens-mean", "20", "--output-tokens-mean", str(OUTPUT_TOKENS)]
    command += ["--extra-inputs", "ignore_eos:true", "--artifact-dir", tmp_path / "out"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        # Offline it would look for the tokenizer in the hub's cache, a folder or not.
        env=clean_environment(HF_HOME=str(tmp_path / "cache"), HF_HUB_OFFLINE=""),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = list((tmp_path / "out").rglob("profile_export_aiperf.json"))
    assert found, done.stdout[-4000:]
    figures: dict[str, Any] = json.loads(found[0].read_text())
    assert figures["request_count"]["avg"] == REQUESTS
    assert figures.get("error_request_count", {}).get("avg", 0) == 0
    assert figures["output_sequence_length"]["avg"] == pytest.approx(OUTPUT_TOKENS, abs=1)
