"""Beam search, best_of and prompt log-probabilities beside transformers, on a tiny random model.

float32 throughout: an EngineClient, the production engine core and worker, in one process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from penstock.client import BeamSearchParams, EngineClient, Hypothesis, beam_search, best_of
from penstock.errors import InvalidRequest
from penstock.model.prepared_model import GenerationDefaults, PreparedModel
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST
from penstock.request.sampling_params import SamplingParams
from testing.in_process import Numerics, System, Way
from testing.model_configs import varied
from testing.scripted_engine import byte_tokenizer_json
from tests.system.in_process_client import InProcessClient
from tests.worker.checkpoints import TINY, tiny_files, tiny_tensors

pytestmark = [pytest.mark.timeout(300)]

CONFIG = varied(TINY, head_dim=32)


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.hidden_size,
        intermediate_size=CONFIG.intermediate_size,
        num_hidden_layers=CONFIG.num_layers,
        num_attention_heads=CONFIG.num_heads,
        num_key_value_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        max_position_embeddings=CONFIG.max_position,
        rms_norm_eps=CONFIG.norm.eps,
        rope_theta=CONFIG.ropes[0].theta,
        tie_word_embeddings=CONFIG.tie_word_embeddings,
        pad_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval().float()
    missing = model.load_state_dict(tiny_tensors(CONFIG), strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    return model


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(CONFIG.vocab_size), k=length)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Runs work(client) with a system of its own. eos: the model's; never: ids that it never
    writes; tokens: of a step; blocks: of the KV cache."""

    def with_client(
        work: Callable[[EngineClient], Any],
        *,
        eos: tuple[int, ...] = (),
        never: tuple[int, ...] = (),
        tokens: int = 2048,
        blocks: int = 400,
        backend: str = "cpu",
    ) -> Any:
        manifest = PreparedModel(
            format_version=FORMAT_VERSION,
            name="tiny",
            source="tiny",
            config=CONFIG,
            generation=GenerationDefaults(eos_token_ids=eos, suppress_tokens=never),
            weights=tiny_files(tmp_path, CONFIG),
            digest="0",
            has_chat_template=False,
        )
        (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        way = Way(16, tokens, blocks, threads=1)
        system = System(tmp_path, Numerics(backend, "float32"), way, byte_tokenizer_json())

        async def go() -> Any:
            client = InProcessClient(system)
            await client.start()
            await client.wait_connected(30)
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(go())

    return with_client


def their_beams(
    model: Any,
    ids: list[int],
    width: int,
    most: int,
    penalty: float,
    eos: tuple[int, ...],
    never: tuple[int, ...] = (),
) -> list[tuple[list[int], float]]:
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=most,
            length_penalty=penalty,
            early_stopping=False,
            eos_token_id=list(eos) or None,
            suppress_tokens=list(never) or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    beams = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = row[len(ids) :]
        ends = [at for at, token in enumerate(tokens) if token in eos]
        beams.append((tokens[: ends[0] + 1] if ends else tokens, score))
    return beams


def likely_ends(model: Any, ids: list[int], width: int, most: int, count: int) -> tuple[int, ...]:
    """Tokens in the middle of the best beams that nothing ends: at most `count` of them."""
    free = their_beams(model, ids, width, most, 1.0, ())
    middle = [token for tokens, _ in free for token in tokens[most // 3 : 2 * most // 3]]
    return tuple(dict.fromkeys(middle))[:count]


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize(
    ("width", "most", "penalty"),
    [(2, 9, 1.0), (3, 12, 0.0), (4, 25, 1.0), (4, 12, 2.0), (7, 14, -0.5), (16, 6, 1.0)],
)
def test_beams_are_those_of_transformers(
    run, theirs, count: int, width: int, most: int, penalty: float
) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=most, length_penalty=penalty)
    prompts = [prompt(5 + 14 * seed, 100 * width + seed) for seed in range(2)]
    eos = likely_ends(theirs, prompts[0], width, most, count) if count else ()

    async def search(client: EngineClient) -> list[list[Hypothesis]]:
        return [await beam_search(client, ids, params, name="beam") for ids in prompts]

    stopped = 0
    for ids, ours in zip(prompts, run(search, eos=eos), strict=True):
        expected = their_beams(theirs, ids, width, most, penalty, eos)
        assert [each.token_ids for each in ours] == [tokens for tokens, _ in expected]
        for each, (_, score) in zip(ours, expected, strict=True):
            assert each.score == pytest.approx(score, abs=1e-4, rel=1e-5)
            ended = each.token_ids[-1] in eos
            assert each.finish_reason == ("stop" if ended else "length")
            stopped += ended
    assert stopped or not eos or penalty > 0, "shorter ones do well here"


def test_what_a_model_never_writes_is_in_no_answer(run, theirs) -> None:
    """Tokens that its answer would have: neither greedy decoding nor beams have them."""
    ids = prompt(20, 8)
    never = likely_ends(theirs, ids, 3, 12, 3)
    params = BeamSearchParams(beam_width=3, max_tokens=12)
    greedy = SamplingParams(temperature=0.0, max_tokens=12, bad_words=["q"])

    async def both(client: EngineClient) -> Any:
        found = await beam_search(client, ids, params, name="beam")
        generation, tokens = await client.submit(ids, greedy, name="greedy"), []
        async for deltas in generation:
            tokens += [token for delta in deltas for token in delta.token_ids]
        return [each.token_ids for each in found], tokens

    beams, tokens = run(both, never=never)
    expected = their_beams(theirs, ids, 3, 12, 1.0, (), never)
    assert beams == [tokens for tokens, _ in expected]
    with torch.inference_mode():
        whole = theirs.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=12,
            suppress_tokens=[*never, ord("q")],
            pad_token_id=0,
        )
    assert tokens == whole[0, len(ids) :].tolist()
    free, _ = run(both)
    assert set(never) & {token for tokens in free for token in tokens}


def test_beams_go_on_where_a_model_never_writes_most_of_its_ids(run, theirs) -> None:
    """What is left is less likely at first than all of those."""
    ids = prompt(20, 8)
    with torch.inference_mode():
        ranked = theirs(torch.tensor([ids])).logits[0, -1].argsort(descending=True).tolist()
    never = tuple(sorted(ranked[:-9]))
    params = BeamSearchParams(beam_width=4, max_tokens=6)

    async def search(client: EngineClient) -> list[list[int]]:
        return [each.token_ids for each in await beam_search(client, ids, params, name="beam")]

    expected = their_beams(theirs, ids, 4, 6, 1.0, (), never)
    assert run(search, never=never) == [tokens for tokens, _ in expected]


def test_a_search_in_little_room_and_small_chunks_is_the_same(run, theirs) -> None:
    ids = prompt(50, 3)
    eos = likely_ends(theirs, ids, 5, 12, 4)
    params = BeamSearchParams(beam_width=5, max_tokens=12, logprobs=2)

    async def search(client: EngineClient) -> list[Hypothesis]:
        return await beam_search(client, ids, params, name="beam")

    roomy, tight = run(search, eos=eos), run(search, eos=eos, tokens=16, blocks=9)
    assert roomy == tight
    for each in roomy:
        assert each.logprobs is not None
        assert len(each.logprobs) == len(each.token_ids)
        assert sum(step.logprob for step in each.logprobs) == pytest.approx(each.cumulative_logprob)
        assert all(len(step.top_ids) == 2 for step in each.logprobs)


def test_what_a_search_may_be_asked_for(run, theirs) -> None:
    ids = prompt(8, 4)
    eos = likely_ends(theirs, ids, 3, 10, 3)

    async def searches(client: EngineClient) -> list[list[Hypothesis]]:
        every = [
            BeamSearchParams(beam_width=3, max_tokens=10),
            BeamSearchParams(beam_width=3, max_tokens=10, ignore_eos=True),
            BeamSearchParams(
                beam_width=3, max_tokens=10, ignore_eos=True, stop_token_ids=list(eos)
            ),
            BeamSearchParams(beam_width=3, max_tokens=10, include_stop_str_in_output=True),
        ]
        return [await beam_search(client, ids, params, name="b") for params in every]

    plain, ignoring, by_ids, included = run(searches, eos=eos)
    assert any(each.finish_reason == "stop" for each in plain)
    assert all(each.finish_reason == "length" for each in ignoring)
    assert [each.token_ids for each in by_ids] == [each.token_ids for each in plain]
    for with_id, each, whole in zip(by_ids, plain, included, strict=True):
        ended = each.finish_reason == "stop"
        assert with_id.stop_reason == (each.token_ids[-1] if ended else None)
        assert each.stop_reason is None
        assert whole.text.startswith(each.text)
        assert (len(whole.text) > len(each.text)) == ended
    for bad in ({"beam_width": 0}, {"beam_width": 129}, {"beam_width": 2, "max_tokens": 0}):
        with pytest.raises(InvalidRequest):
            BeamSearchParams(**bad)
    with pytest.raises(InvalidRequest, match="length_penalty"):
        BeamSearchParams(beam_width=2, length_penalty=float("nan"))


def test_best_of_keeps_the_likeliest(run) -> None:
    ids = prompt(20, 5)
    params = SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True)

    async def both(client: EngineClient) -> Any:
        chosen = await best_of(client, ids, params, best_of=6, name="best")
        everything = msgspec.structs.replace(params, n=6, logprobs=0)
        generation = await client.submit(ids, everything, name="all")
        found: dict[int, list[float]] = {}
        tokens: dict[int, list[int]] = {}
        async for deltas in generation:
            for delta in deltas:
                tokens.setdefault(delta.index, []).extend(delta.token_ids)
                found.setdefault(delta.index, []).extend(e.logprob for e in delta.logprobs or [])
        return chosen, tokens, found

    chosen, tokens, found = run(both)
    order = sorted(found, key=lambda index: -sum(found[index]) / len(found[index]))
    assert [each.token_ids for each in chosen.chosen] == [tokens[index] for index in order[:2]]
    assert chosen.chosen[0].logprobs is None
    assert chosen.chosen[0].cumulative_logprob == pytest.approx(sum(found[order[0]]))
    assert chosen.generated_tokens == 48
    with pytest.raises(InvalidRequest, match="best_of must be a whole number in"):
        run(lambda client: best_of(client, ids, params, best_of=1, name="b"))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_prompt_logprobs_are_transformers_log_softmax(run, theirs, backend: str) -> None:
    ids = prompt(240, 6)
    with torch.inference_mode():
        true = torch.log_softmax(theirs(torch.tensor([ids])).logits[0].double(), -1)

    async def ask(client: EngineClient) -> Any:
        score_only = SamplingParams(prompt_logprobs=5, max_tokens=0, n=2)
        generation = await client.submit(ids, score_only, name="score")
        ends = [delta async for deltas in generation for delta in deltas]
        sampled = SamplingParams(prompt_logprobs=5, logprobs=5, temperature=0.0, max_tokens=4)
        again = await client.submit(ids, sampled, name="again")
        first = await anext(aiter(again))
        return generation.prompt_logprobs, ends, again.prompt_logprobs, first

    # In one chunk, which is computed in two passes; and in chunks of 16.
    whole, ends, again, first = run(ask, backend=backend)
    assert [(end.token_ids, end.finish_reason) for end in ends] == [([], "length")] * 2
    assert whole == again == run(ask, tokens=16, backend=backend)[0]
    assert whole[0] is None
    assert len(whole) == 240
    for at, entry in enumerate(whole[1:], start=1):
        assert entry.logprob == pytest.approx(float(true[at - 1, ids[at]]), abs=1e-4)
        best = true[at - 1].topk(5)
        assert entry.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-4)
    assert first[0].logprobs[0].logprob == pytest.approx(float(true[-1].max()), abs=1e-4)
