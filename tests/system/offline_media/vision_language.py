"""Pictures in prompts: one and many prompts, several pictures, names of pictures, and chats."""

import base64
from dataclasses import asdict
from io import BytesIO

from PIL import Image

from penstock import LLM, EngineArgs, SamplingParams
from testing.trained.seeing import FOLDER
from testing.trained.seeing.exam import file_of
from testing.trained.seeing.pictures import Things

stars, circle = Things(3, "blue", "star"), Things(1, "red", "circle")
images = [
    Image.open(BytesIO(file_of(things, number, 120, 90))).convert("RGB")
    for number, things in enumerate((stars, circle))
]
question = "What is in the picture?"
prompt = f"<s><|user|><image>{question}<|assistant|>"

engine_args = EngineArgs(
    model=str(FOLDER),
    max_model_len=512,
    max_num_seqs=2,
    enforce_eager=True,
    limit_mm_per_prompt={"image": 2},
)
limits = {"image": 0, "video": 0, "audio": 0} | dict(engine_args.limit_mm_per_prompt or {})
engine_args.limit_mm_per_prompt = limits
llm = LLM(**asdict(engine_args) | {"seed": 0, "mm_processor_cache_gb": 4})
sampling_params = SamplingParams(temperature=0.0, max_tokens=64, stop_token_ids=[])


def said(inputs, **more):
    outputs = llm.generate(inputs, sampling_params=sampling_params, use_tqdm=False, **more)
    return [output.outputs[0].text for output in outputs]


one = {"prompt": prompt, "multi_modal_data": {"image": images[0]}}
assert said(one) == [stars.words]

# The same picture and another one in turn, each by its name the second time.
batch = [
    {
        "prompt": prompt,
        "multi_modal_data": {"image": images[number % 2]},
        "multi_modal_uuids": {"image": f"picture {number % 2}"},
    }
    for number in range(4)
]
assert said(batch) == [stars.words, circle.words] * 2
named = {
    "prompt": prompt,
    "multi_modal_data": {"image": None},
    "multi_modal_uuids": {"image": "picture 1"},
}
assert said(named) == [circle.words]

several = {
    "prompt": "<s><|user|><image><image>What is in the pictures?<|assistant|>",
    "multi_modal_data": {"image": images},
}
assert said(several) == [f"{stars.words} {circle.words}"]


def data_url(image):
    file = BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


urls = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
objects = [{"type": "image_pil", "image_pil": image} for image in images]
for parts in (urls, objects):
    text = {"type": "text", "text": "What is in the pictures?"}
    messages = [{"role": "user", "content": [*parts, text]}]
    (output,) = llm.chat(messages, sampling_params=sampling_params, use_tqdm=False)
    assert output.outputs[0].text == f"{stars.words} {circle.words}"

try:
    said({"prompt": prompt * 3, "multi_modal_data": {"image": images * 2}})
except ValueError as error:
    print(error)
else:
    raise SystemExit("more pictures than limit_mm_per_prompt were taken")
