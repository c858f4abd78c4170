"""Every layout gives the tokens of one process, whatever the company of a request."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.common import TokenSampling
from testing.model_configs import varied
from tests.worker.checkpoints import TINY, load_model, tiny_files
from tests.worker.driver import GREEDY, Driver, Job, LogitsOf, make_runner
from tests.worker.parallel.together import Formed, Together

pytestmark = pytest.mark.timeout(240)

SPREAD = varied(
    TINY,
    architecture="qwen3",
    num_layers=3,
    num_heads=6,
    num_kv_heads=3,
    head_dim=16,
    intermediate_size=150,
    qkv_bias=True,
    qk_norm=True,
    tie_word_embeddings=True,
)
"""Three KV heads over two ranks; three layers over two stages; ends that aren't whole units."""

LAYOUTS = [(2, 1), (3, 1), (1, 2), (1, 3), (2, 2)]
PROMPTS = [[5, 17, 250, 3], list(range(40, 90)), [9], [300, 0, 299] * 11]
SEEDED = TokenSampling(11, temperature=0.9, top_p=0.9, logprobs=2)


def jobs(sampling: TokenSampling = GREEDY, wanted: int = 8) -> list[Job]:
    return [Job(prompt, wanted, sampling) for prompt in PROMPTS]


def alone(config: ModelConfig, files: WeightFiles, sampling: TokenSampling = GREEDY) -> list[Job]:
    """The jobs as one process computes them, the usual way."""
    runner = make_runner(load_model(config, files, torch.float32))
    done = Driver(runner).run(jobs(sampling))
    runner.close()
    return done


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ModelConfig, WeightFiles]]:
    found = {}
    for name, config in (("tiny", TINY), ("spread", SPREAD)):
        folder = tmp_path_factory.mktemp(name)
        found[name] = (config, tiny_files(folder, config))
    return found


@pytest.mark.parametrize(("tensor", "pipeline"), LAYOUTS)
def test_tokens_are_those_of_one_process(
    files: dict[str, tuple[ModelConfig, WeightFiles]], tensor: int, pipeline: int
) -> None:
    for name, (config, weights) in files.items():
        if pipeline > config.num_layers:
            continue
        with Formed(tensor, pipeline) as formed:
            for sampling in (GREEDY, SEEDED):
                together = Together(formed, config, weights)
                done = Driver(together, budget=30, preempt_every=5, seed=3).run(jobs(sampling))
                together.close()
                for ours, true in zip(done, alone(config, weights, sampling), strict=True):
                    assert ours.error is None
                    assert ours.tokens == true.tokens, (name, sampling.temperature)
                    if tensor == 1:
                        assert ours.logprobs == true.logprobs, "stages change no bit"


def test_stages_hold_their_layers_of_each_kv_group(tmp_path: Path) -> None:
    """Layers with a window and without, in several groups over two stages."""
    base = varied(TINY, num_layers=5)
    layers = tuple(
        msgspec.structs.replace(base.layers[0], attention=AttentionSpec(window=window))
        for window in (20, None, 20, 20, None)
    )
    config, weights = msgspec.structs.replace(base, layers=layers), tiny_files(tmp_path, base)
    with Formed(1, 2) as formed:
        together = Together(formed, config, weights)
        assert together.num_groups == 1 + 2
        done = Driver(together, budget=30, preempt_every=5, seed=3).run(jobs())
        together.close()
    for ours, true in zip(done, alone(config, weights), strict=True):
        assert (ours.tokens, ours.logprobs) == (true.tokens, true.logprobs)


def logits_of(
    runner: object, watch: LogitsOf, company: list[list[int]], budget: int
) -> torch.Tensor:
    """Logits of the first job's positions, computed among others."""
    driver = Driver(runner, budget=budget, seed=len(company))
    subject = Job(PROMPTS[1], 6)
    rows: dict[int, torch.Tensor] = {}
    running = [subject, *(Job(prompt, 9) for prompt in company)]
    while not subject.done:
        watch.by_slot.clear()
        driver._step([job for job in running if not job.done])
        rows |= watch.by_slot.get(subject.slot, {})
        for job in running:
            if job.done and job.slot is not None:
                driver._release(job)
    return torch.stack([rows[position] for position in sorted(rows)])


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (3, 1), (1, 2)])
def test_logits_are_near_and_the_same_in_any_batch(
    files: dict[str, tuple[ModelConfig, WeightFiles]], tensor: int, pipeline: int
) -> None:
    config, weights = files["spread"]
    watch = LogitsOf()
    runner = make_runner(load_model(config, weights, torch.float32), observer=watch)
    true = logits_of(runner, watch, [], 2048)
    runner.close()
    with Formed(tensor, pipeline) as formed:
        found = []
        for company, budget in (([], 2048), (PROMPTS[2:] * 4, 23)):
            together = Together(formed, config, weights, observer=watch)
            found.append(logits_of(together, watch, company, budget))
            together.close()
    assert torch.equal(found[0], found[1])
    if tensor == 1:
        assert torch.equal(found[0], true)
    assert torch.allclose(found[0], true, rtol=1e-4, atol=1e-4)


def test_bfloat16_over_two_ranks_is_batch_invariant(
    files: dict[str, tuple[ModelConfig, WeightFiles]],
) -> None:
    config, weights = files["spread"]
    watch, found = LogitsOf(), []
    with Formed(2) as formed:
        for company, budget in (([], 2048), (PROMPTS[2:] * 3, 19)):
            together = Together(formed, config, weights, torch.bfloat16, observer=watch)
            found.append(logits_of(together, watch, company, budget))
            together.close()
    assert torch.equal(*found)


def test_prompt_logprobs_over_stages(
    files: dict[str, tuple[ModelConfig, WeightFiles]], tmp_path: Path
) -> None:
    from penstock.protocol.to_worker import NewSequence, Plan, SlotWork

    config, weights = files["spread"]
    sampling = msgspec.structs.replace(GREEDY, prompt_logprobs=2)
    prompt = [(7 * at) % 300 for at in range(200)]
    blocks = list(range(13))
    new = NewSequence(0, prompt, len(prompt), 0, sampling, blocks, prompt_from=1)
    other = NewSequence(1, [4, 5, 6], 3, 0, GREEDY, [20])
    plan = Plan(1, 0, [], [new, other], [SlotWork(0, 0, 200), SlotWork(1, 0, 3)])
    runner = make_runner(load_model(config, weights, torch.float32))
    true = runner.execute(plan)
    runner.close()
    with Formed(1, 2) as formed:
        together = Together(formed, config, weights)
        ours = together.execute(plan)
        together.close()
    assert ours.slots == true.slots
    assert len(ours.slots[0].prompt_logprobs) == 199
