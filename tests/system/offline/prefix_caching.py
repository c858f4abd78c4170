"""Prompts that begin alike: with their KV kept, and without, the texts are the same."""

from penstock import LLM, SamplingParams

prefix = "You teach at a school and mark essays. You are patient, fair and brief. " * 4
questions = ["The first essay is", "The second essay is", "A good mark is for"]
prompts = [prefix + question for question in questions]
params = SamplingParams(temperature=0.0, max_tokens=8)

regular = LLM(model="smollm2-135m", gpu_memory_utilization=0.9, max_model_len=512)
first = regular.generate(prompts, params)
del regular

cached = LLM(model="smollm2-135m", enable_prefix_caching=True, max_model_len=512)
cached.generate(prompts[0], params)
second = cached.generate(prompts, params)

texts = [[output.outputs[0].text for output in outputs] for outputs in (first, second)]
assert texts[0] == texts[1]
assert all(output.num_cached_tokens > 0 for output in second)
