"""Sounds for an encoder-decoder model: with a text, in halves, and many at once."""

import re
import time
from dataclasses import asdict

from penstock import LLM, EngineArgs, SamplingParams
from testing.trained.hearing import FOLDER
from testing.trained.hearing.exam import unheard

recordings = unheard(2, 1.2, 1)
sounds = [(recording.samples, 16_000) for recording in recordings]

engine_args = EngineArgs(model=str(FOLDER), max_num_seqs=5, limit_mm_per_prompt={"audio": 1})
limits = {"image": 0, "video": 0, "audio": 0} | dict(engine_args.limit_mm_per_prompt or {})
engine_args.limit_mm_per_prompt = limits
llm = LLM(**asdict(engine_args) | {"seed": None})

begin = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
prompts = [
    {"prompt": begin, "multi_modal_data": {"audio": sounds[0]}},
    {
        "encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": sounds[1]}},
        "decoder_prompt": begin,
    },
]
sampling_params = SamplingParams(temperature=0, top_p=1.0, max_tokens=20)

start = time.time()
outputs = llm.generate(prompts, sampling_params)
print(f"{(time.time() - start) / len(prompts):.2f} s each")
for output, recording in zip(outputs, recordings, strict=True):
    print(f"{output.prompt!r}: {output.outputs[0].text!r}")
    words = re.sub(r"<\|[^|]*\|>", "", output.outputs[0].text)  # it writes times, too
    assert words.split() == recording.text.split()
