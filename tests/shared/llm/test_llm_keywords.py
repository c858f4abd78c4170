"""Which keywords LLM takes: ours, vLLM's, and what is said to the others."""

from __future__ import annotations

import dataclasses
import logging
import re
import subprocess
import sys
from typing import Any

import pytest

import penstock
from penstock import LLM, AsyncEngineArgs, EngineArgs, FlexibleArgumentParser, SamplingParams
from penstock.config.foreign_names import FOREIGN
from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest, PenstockError
from penstock.llm import sync
from penstock.llm.keywords import engine_config
from penstock.request.sampling_params import RequestOutputKind


def test_names_of_vllm_set_what_is_called_otherwise_here() -> None:
    config = engine_config(
        {
            "model": "m",
            "dtype": "float",
            "block_size": 32,
            "num_gpu_blocks_override": 77,
            "swap_space": 2,
            "quantization": None,
            "max_num_seqs": None,
            "enable_prefix_caching": False,
            "served_model_name": ["name"],
        }
    )
    assert (config.model.model, config.model.dtype) == ("m", "float32")
    assert (config.model.quantization, config.model.served_model_name) == ("none", "name")
    assert (config.cache.kv_block_size, config.cache.num_kv_blocks) == (32, 77)
    assert (config.cache.host_kv_gib, config.cache.enable_prefix_caching) == (2.0, False)
    assert engine_config({"dtype": "half"}).model.dtype == "float16"
    assert engine_config({"load_format": "safetensors"}).model.load_format == "auto"
    assert config.scheduler.max_num_seqs == engine_config({}).scheduler.max_num_seqs


def test_generation_config_is_taken_as_vllm_takes_it() -> None:
    given = {"generation_config": "vllm", "override_generation_config": {"temperature": 0.5}}
    model = engine_config(given).model
    assert model.generation_config == "vllm"
    assert model.override_generation_config == '{"temperature":0.5}'
    assert engine_config({"override_generation_config": {}}) == engine_config({})


def test_ranks_are_asked_for_as_vllm_has_it() -> None:
    config = engine_config({"tensor_parallel_size": 2, "pipeline_parallel_size": 3})
    assert config.parallel.ranks == 6
    config = engine_config({"gpu_memory_utilization": 0.5, "enforce_eager": True})
    assert (config.cache.gpu_memory_utilization, config.worker.enforce_eager) == (0.5, True)
    assert engine_config({}).parallel.ranks == 1


def test_what_happens_anyway_is_accepted() -> None:
    asked = {name: one.default for name, one in FOREIGN.items()}
    asked |= {"disable_log_stats": False, "trust_remote_code": True}
    asked |= {"model": "m", "tokenizer": "m"}
    assert engine_config(asked) == engine_config({"model": "m"})


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"data_parallel_size": 2}, "data_parallel_size: 2 is not supported here; allowed: 1"),
        ({"data_parallel_size": True}, "data_parallel_size: True"),
        ({"tensor_parallel_size": 65}, "tensor_parallel_size: 65"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size: True"),
        ({"context_length": 64}, "did you mean 'max_model_len'?"),
        ({"max_modl_len": 64}, "did you mean 'max_model_len'?"),
        ({"tokenizer": "other"}, "a tokenizer comes with its model"),
        ({"max_logprobs": 21}, "allowed: 0 to 20"),
        ({"dtype": "float8"}, "dtype: 'float8' is not allowed; expected one of auto"),
        ({"dtype": ["auto"]}, "dtype"),
        ({"max_model_len": 0}, "max_model_len: 0"),
        ({"block_size": 8, "kv_block_size": 16}, "kv_block_size was given as well"),
        (
            {"no_such_thing": 1},
            "no setting is called 'no_such_thing'; `penstock config-table` lists all settings",
        ),
    ],
)
def test_the_rest_is_refused_by_name(keywords: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        engine_config(keywords)


def test_a_keyword_without_effect_says_so(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        engine_config({"compilation_config": 3})
    assert "compilation_config=3 has no effect here" in caplog.text
    caplog.clear()
    engine_config({"compilation_config": None})
    assert not caplog.text


def test_engine_args_are_keywords() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--max-tokens", type=int)
    arguments = parser.parse_args(
        ["--model", "m", "--max_model_len=64", "--block-size", "8", "--max-tokens", "3"]
    )
    arguments = EngineArgs.from_cli_args(arguments)
    assert engine_config(dataclasses.asdict(arguments)) == engine_config(
        {"model": "m", "max_model_len": 64, "kv_block_size": 8}
    )
    assert dataclasses.asdict(AsyncEngineArgs()) == dataclasses.asdict(EngineArgs())
    with pytest.raises(TypeError, match="no_such_thing"):
        EngineArgs(no_such_thing=1)


def test_sampling_params_can_be_changed_and_are_checked_then_too() -> None:
    params = SamplingParams(temperature=0)
    params.max_tokens = 5
    assert params == SamplingParams(temperature=0, max_tokens=5)
    with pytest.raises(InvalidRequest, match="top_p"):
        params.top_p = 2.0
    assert params.top_p == 1.0
    with pytest.raises(AttributeError):
        params.no_such_field = 1
    copy = params.clone()
    copy.n = 3
    assert (params.n, copy.n) == (1, 3)
    with pytest.raises(InvalidRequest, match="output_kind"):
        SamplingParams(output_kind="delta")
    assert SamplingParams(output_kind=RequestOutputKind.DELTA).output_kind.value == 1


def test_every_name_is_there_and_none_costs_anything_before_it_is_used() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert penstock.StructuredOutputsParams is penstock.StructuredOutputs
    code = "import sys, penstock; print(len([m for m in sys.modules if m.startswith('penstock')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2


@pytest.mark.parametrize(
    ("given", "meant"),
    [({}, 0.0), ({"max_step_slowdown": None}, 0.0), ({"max_step_slowdown": 3}, 3)],
)
def test_prompts_of_scripts_do_not_wait_for_decodes(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], meant: float
) -> None:
    class Caught(PenstockError):
        """Raised in place of a start."""

    seen: list[EngineConfig] = []

    def started(model: str, **keywords: Any) -> None:
        del keywords["engine_endpoint"], keywords["engine_log"]
        seen.append(engine_config({"model": model, **keywords}))
        raise Caught("nothing is started")

    monkeypatch.setattr(sync, "AsyncLLM", started)
    with pytest.raises(Caught):
        LLM("smollm2-135m", **given)
    assert [config.scheduler.max_step_slowdown for config in seen] == [meant]
