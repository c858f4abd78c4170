"""Some prompts, one SamplingParams, and a loop over what comes back."""

from penstock import LLM, SamplingParams

prompts = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=12)

llm = LLM(model="smollm2-135m", max_model_len=512, num_gpu_blocks_override=64)
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    print(f"{output.prompt!r} goes on with {output.outputs[0].text!r}")

assert [output.prompt for output in outputs] == prompts
assert all(len(output.outputs[0].token_ids) <= 12 for output in outputs)
