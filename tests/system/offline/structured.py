"""Outputs of a shape."""

import json
import re

from penstock import LLM, SamplingParams
from penstock import StructuredOutputsParams as Shape

llm = LLM(model="smollm2-135m", max_model_len=512)


def answer(prompt, shape, **more):
    params = SamplingParams(structured_outputs=shape, temperature=0, max_tokens=60, **more)
    return llm.generate(prompt, sampling_params=params, use_tqdm=False)[0].outputs[0].text


assert answer("Is this good or bad? I love it!", Shape(choice=["good", "bad"])) in ("good", "bad")

email = answer("The address of Alan Turing: ", Shape(regex=r"\w{1,8}@\w{1,8}\.com\n"), stop=["\n"])
assert re.fullmatch(r"\w{1,8}@\w{1,8}\.com", email)

schema = {
    "type": "object",
    "properties": {"brand": {"type": "string", "maxLength": 8}, "doors": {"enum": [2, 4]}},
    "required": ["brand", "doors"],
    "additionalProperties": False,
}
car = json.loads(answer("A car as JSON: ", Shape(json=schema)))
assert car["doors"] in (2, 4)

count = answer("Count: ", Shape(grammar='start: "one" | "one, two" | "one, two, three"'))
assert count.startswith("one")
