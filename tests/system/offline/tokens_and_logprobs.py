"""Token ids as prompts, parameters for each, several answers, log-probabilities, the tokenizer."""

import math

from penstock import LLM, SamplingParams, TextPrompt, TokensPrompt

llm = LLM(model="smollm2-135m", max_model_len=512)
tokenizer = llm.get_tokenizer()
ids = tokenizer.encode("The capital of France is")
assert tokenizer.decode(ids) == "The capital of France is"
assert tokenizer.eos_token_id in tokenizer.all_special_ids
assert tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id) == tokenizer.eos_token
assert tokenizer(["a", "b c"])["attention_mask"] == [[1], [1, 1]]
messages = [{"role": "user", "content": "Hello"}]
rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
assert tokenizer.decode(tokenizer.apply_chat_template(messages, add_generation_prompt=True)) == (
    rendered
)

greedy = SamplingParams(temperature=0, max_tokens=4)
forms = [
    TokensPrompt(prompt_token_ids=ids),
    TextPrompt(prompt="The capital of France is"),
    {"prompt": "The capital of France is"},
    ids,
    "The capital of France is",
]
same = llm.generate(forms, greedy, use_tqdm=False)
assert len({tuple(output.outputs[0].token_ids) for output in same}) == 1
assert all(output.prompt_token_ids == ids for output in same)

each = [SamplingParams(max_tokens=k, ignore_eos=True, seed=k) for k in (1, 2, 3)]
lengths = [len(o.outputs[0].token_ids) for o in llm.generate([ids] * 3, each)]
assert lengths == [1, 2, 3]

several = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=6, logprobs=2)
(output,) = llm.generate("Once upon a time", several, use_tqdm=False, priority=[0])
assert [completion.index for completion in output.outputs] == [0, 1, 2]
for completion in output.outputs:
    chosen = [
        step[token] for token, step in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    assert math.isclose(sum(one.logprob for one in chosen), completion.cumulative_logprob)
    assert chosen[0].decoded_token == tokenizer.decode(completion.token_ids[:1])
    assert completion.finished()
    assert completion.finish_reason in ("length", "stop")
metrics = output.metrics
assert metrics.arrival_time <= metrics.first_token_time <= metrics.last_token_time
assert metrics.last_token_time <= metrics.finished_time
