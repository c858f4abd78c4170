"""Answers of gpt-oss: messages in channels (OpenAI's harmony format). A call's head names its
function before the channel or after it:

<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary \
to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
"""

from penstock.parsing.format import ChannelFormat, Recognised

HARMONY = ChannelFormat(
    names=("openai", "harmony"),
    reasoning_names=("openai_gptoss", "openai", "harmony"),
    models="gpt-oss",
    recognised=Recognised(
        all_of=("<|channel|>", "<|message|>", "<|start|>"), families=("gpt_oss",)
    ),
    begin="<|start|>",
    channel="<|channel|>",
    text="<|message|>",
    ends=("<|end|>", "<|call|>", "<|return|>"),
    thoughts=("analysis",),
    recipient=r"\bto=functions\.(?P<name>[\w-]{1,256})",
    answer="final",
    calls="commentary",
    address="to=functions.",
    content_type="<|constrain|>",
    tokens=(
        *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"),
        *("<|end|>", "<|call|>", "<|return|>"),
    ),
)
