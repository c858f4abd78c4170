"""Command lines that were written for `vllm serve`, and scripts that import from vllm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.commands import BY_NAME
from penstock.cli.serve import _config
from penstock.config.foreign_names import FOREIGN, SERVER_FOREIGN
from penstock.config.settings import ServeConfig
from penstock.config.tree import replace_settings

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "coming-from.md"


def served(line: str) -> ServeConfig:
    """The configuration that `penstock serve` makes of a command line."""
    return _config(BY_NAME["serve"].parser().parse_args(line.split()))


def config(**settings: object) -> ServeConfig:
    return replace_settings(ServeConfig(), settings)


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("m -tp 2 -pp 3 -dp 4", {"tensor_parallel_size": 2, "pipeline_parallel_size": 3,
                                 "data_parallel_size": 4}),
        ("m --dtype half", {"dtype": "float16"}),
        ("m --dtype=float", {"dtype": "float32"}),
        ("m --max_model_len 64 --max_num_seqs=3", {"max_model_len": 64, "max_num_seqs": 3}),
        ("m --block-size 8 --num-gpu-blocks-override 9", {"kv_block_size": 8, "num_kv_blocks": 9}),
        ("m --swap-space 2 --download-dir d", {"host_kv_gib": 2.0, "cache_dir": "d"}),
        ("m --api-server-count 2", {"gateways": 2}),
        ("m --served-model-name a", {"served_model_name": "a"}),
        ("m --served-model-name a b --port 1", {"served_model_name": "a,b", "port": 1}),
        ("m --trust-remote-code --disable-log-requests --uvicorn-log-level error", {}),
        ("m --enable-chunked-prefill --distributed-executor-backend mp --load-format gguf", {}),
        ("--trust-remote-code m", {}),
        ("--async-scheduling m --no-enable-log-requests", {}),
        ("m --generation-config vllm", {"generation_config": "vllm"}),
        ("m --model-impl vllm", {"model_impl": "penstock"}),
        ("m --model-impl transformers", {"model_impl": "transformers"}),
    ],
)  # fmt: skip
def test_a_command_line_of_vllms_means_the_same(line: str, settings: dict[str, object]) -> None:
    assert served(line) == config(model="m", **settings)


def test_every_name_of_vllms_is_taken_at_its_default() -> None:
    leaves = BY_NAME["serve"].parser()
    for name, one in {**FOREIGN, **SERVER_FOREIGN}.items():
        flag = "--" + name.replace("_", "-")
        assert flag in leaves._option_string_actions
        if one.switch:
            given = f"--no-{flag[2:]}" if one.default is False else flag
            assert served(f"{given} m").engine.model.model == "m"
        elif one.default not in (None, ""):
            assert served(f"{flag} {one.default} m").engine.model.model == "m"


def test_a_key_on_the_command_line_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "old")
    served("m --api-key sk-new")
    assert os.environ["PENSTOCK_API_KEY"] == "sk-new"


IMPORTS = """
from vllm import LLM, SamplingParams, EngineArgs
from vllm.utils import FlexibleArgumentParser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.sampling_params import (
    BeamSearchParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
)
from vllm.outputs import CompletionOutput, RequestOutput, EmbeddingRequestOutput, PoolingOutput
from vllm.outputs import ClassificationRequestOutput, PoolingRequestOutput, ScoringRequestOutput
from vllm.inputs import TextPrompt, TokensPrompt
from vllm.pooling_params import PoolingParams
import vllm
print(vllm.SamplingParams(max_tokens=3).max_tokens)
"""


def test_the_guides_sed_line_makes_a_script_of_vllms_run(tmp_path: Path) -> None:
    line = re.search(r"^sed .*$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    script = tmp_path / "script.py"
    script.write_text(IMPORTS)
    subprocess.run(["bash", "-c", line.group()], cwd=tmp_path, check=True, timeout=30)
    assert "from vllm" not in script.read_text()
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_structured_outputs_are_where_vllm_has_them() -> None:
    from penstock.request.sampling_params import StructuredOutputsParams
    from penstock.request.structured_outputs import StructuredOutputs

    assert StructuredOutputsParams is StructuredOutputs
