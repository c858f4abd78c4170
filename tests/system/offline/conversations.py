"""One conversation, many at once, and one that the model goes on with."""

from penstock import LLM, SamplingParams

llm = LLM("smollm2-135m", max_model_len=512, seed=0)
params = SamplingParams(temperature=0, max_tokens=24)

conversation = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I help you today?"},
    {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
]
(single,) = llm.chat(conversation, sampling_params=params, use_tqdm=False)
print(single.prompt)
print(single.outputs[0].text)
assert "<|im_start|>user\nWhat is the capital of France?<|im_end|>" in single.prompt
assert single.prompt.endswith("<|im_start|>assistant\n")

many = llm.chat([conversation] * 5, params)
assert [one.outputs[0].token_ids for one in many] == [single.outputs[0].token_ids] * 5

begun = [*conversation, {"role": "assistant", "content": "The capital of"}]
(continued,) = llm.chat(
    begun, params, add_generation_prompt=False, continue_final_message=True, use_tqdm=False
)
print(continued.outputs[0].text)
assert continued.prompt.endswith("<|im_start|>assistant\nThe capital of")
assert "Paris" in continued.outputs[0].text

plain = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
(other,) = llm.chat(conversation[:2], params, chat_template=plain, use_tqdm=False)
assert other.prompt == "system: You are a helpful assistant.\nuser: Hello\n"
(with_tools,) = llm.chat(
    conversation[:2],
    params,
    chat_template=plain + "{{ tools[0]['name'] if tools }}{{ mood }}",
    tools=[{"name": "weather"}],
    chat_template_kwargs={"mood": "!"},
    use_tqdm=False,
)
assert with_tools.prompt.endswith("weather!")
