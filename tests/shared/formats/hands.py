"""How models write their turns: thoughts, texts and calls, as templates of releases show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.shared.formats.turns import Call, Turn, as_dsml, as_keys, as_loose, as_object, as_python


@dataclass(frozen=True)
class Hand:
    """How models write for whom these templates are.

    tokenizer: a folder of the releases' tokenizers; empty: texts are compared instead of ids.
    thinks: with {}; what of it the prompt has begun already is left out. Empty: it doesn't think.
    always: it thinks in each turn, as models do whose prompt begins their thoughts.
    says: with {}.  says_before: the same before calls, where that is something else.
    space: between a text and calls.  before, between, after: around calls.
    call: with {name}, {arguments} and {index}.
    ends: of an answer of text, and of one of calls.  alone: it never writes two calls.
    """

    templates: tuple[str, ...]
    call: str
    arguments: Callable[[Call], str] = as_object
    thinks: str = ""
    always: bool = False
    says: str = "{}"
    says_before: str = ""
    space: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    ends: tuple[str, str] = ("<|im_end|>", "<|im_end|>")
    tokenizer: str = ""
    alone: bool = False

    @property
    def name(self) -> str:
        return self.templates[0]

    def tries(self, turn: Turn) -> bool:
        """Whether the model writes such a turn."""
        if self.always and not (turn.thought or turn.calls):
            return False
        return bool(self.thinks or not turn.thought) and not (self.alone and len(turn.calls) > 1)

    def begun(self, prompt: str) -> str:
        """What of its thoughts the prompt ends in, perhaps without a line break."""
        begin = self.thinks.partition("{}")[0]
        marks = (begin, begin.rstrip())
        return next((mark for mark in marks if mark.strip() and prompt.endswith(mark)), "")

    def writes(self, turn: Turn, prompt: str) -> str:
        """All of an answer, its end included."""
        begin, _, end = self.thinks.partition("{}")
        thought = "Hm." if self.always else turn.thought
        text = f"{begin.removeprefix(self.begun(prompt))}{thought}{end}" if thought else ""
        if turn.said:
            says = self.says_before if turn.calls and self.says_before else self.says
            text += says.replace("{}", turn.said)
        if not turn.calls:
            return text + self.ends[0]
        calls = self.between.join(self._call(call, i) for i, call in enumerate(turn.calls))
        space = self.space if turn.said else ""
        return f"{text}{space}{self.before}{calls}{self.after}{self.ends[1]}"

    def _call(self, call: Call, index: int) -> str:
        text = self.call.replace("{name}", call.name).replace("{index}", str(index))
        return text.replace("{arguments}", self.arguments(call))


HERMES = '<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>'
XML = "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>"
LISTED = '{"name": "{name}", "arguments": {arguments}}'
XML_KEYS = as_keys("<parameter={key}>\n{value}\n</parameter>\n")
TIGHT_KEYS = as_keys("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
GLM_KEYS = as_keys("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
THINK = "<think>\n{}\n</think>\n\n"
GLM_ENDS = ("<|user|>", "<|observation|>")
EOS_V3 = "<｜end▁of▁sentence｜>"
DSML = '<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>'
EOS = ("<|im_end|>", "<|im_end|>")
"""The end of the tests' tokenizer, for templates that take the model's own from it."""
END_TURN = "<|END_OF_TURN_TOKEN|>"

QWEN3 = Hand(
    ("Qwen-Qwen3-0.6B",),
    HERMES,
    thinks=THINK,
    space="\n",
    between="\n",
    tokenizer="qwen3",
)
APRIEL = Hand(
    ("unsloth-Apriel-1.5",),
    LISTED,
    thinks="Here are my reasoning steps:\n{}\n[BEGIN FINAL RESPONSE]\n",
    before="\n<tool_calls>[",
    between=", ",
    after="]</tool_calls>",
    ends=("\n<|end|>", "\n<|end|>"),
)
HANDS: Sequence[Hand] = (
    QWEN3,
    replace(QWEN3, templates=("Qwen-QwQ-32B",), always=True),
    APRIEL,
    replace(APRIEL, templates=("Apriel-1.6-15b-Thinker-fixed",), always=True),
    Hand(
        ("Qwen-Qwen2.5-7B-Instruct", "MiMo-VL"),
        HERMES,
        space="\n",
        between="\n",
        tokenizer="qwen3",
    ),
    Hand(
        ("ibm-granite-granite-4.0", "ibm-granite-granite-4.1"),
        HERMES,
        space="\n",
        between="\n",
        ends=("<|end_of_text|>", "<|end_of_text|>"),
    ),
    Hand(("Qwen3-Coder",), XML, XML_KEYS, space="\n\n", between="\n", tokenizer="qwen3"),
    Hand(
        ("Qwen3.5-4B",),
        XML,
        XML_KEYS,
        always=True,
        thinks=THINK,
        space="\n\n",
        between="\n",
        tokenizer="qwen3",
    ),
    Hand(
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
        XML,
        XML_KEYS,
        always=True,
        thinks="<think>\n{}\n</think>\n",
        space="\n",
        between="\n",
        after="\n",
    ),
    Hand(("StepFun3.5-Flash",), XML, XML_KEYS, always=True, thinks="<think>\n{}\n</think>\n"),
    Hand(
        ("GLM-4.6",),
        "<tool_call>{name}\n{arguments}</tool_call>",
        GLM_KEYS,
        thinks="\n<think>{}</think>",
        always=True,
        says="\n{}",
        before="\n",
        between="\n",
        ends=GLM_ENDS,
    ),
    Hand(
        ("GLM-4.7-Flash",),
        "<tool_call>{name}{arguments}</tool_call>",
        TIGHT_KEYS,
        always=True,
        thinks="<think>{}</think>",
        ends=GLM_ENDS,
    ),
    Hand(
        ("inclusionai-ling-3.0-flash",),
        "<tool_call>{name}\n{arguments}\n</tool_call>",
        as_keys("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"),
        always=True,
        thinks="<think>{}</think>",
        space="\n",
        between="\n",
        ends=("<|role_end|>", "<|role_end|>"),
    ),
    Hand(
        ("poolside-Laguna-XS.2",),
        "<tool_call>{name}\n{arguments}</tool_call>",
        GLM_KEYS,
        always=True,
        thinks="<think>\n{}\n</think>\n",
        space="\n",
        between="\n",
        ends=("\n</assistant>", "\n</assistant>"),
    ),
    Hand(
        ("moonshotai-Kimi-K2",),
        "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
    ),
    Hand(
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",),
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜>",
        always=True,
        thinks="<think>\n{}\n</think>\n\n",
        before="<｜tool▁calls▁begin｜>",
        between="\n",
        after="<｜tool▁calls▁end｜>",
        ends=(EOS_V3, EOS_V3),
        tokenizer="deepseek_v3",
    ),
    Hand(
        ("deepseek-ai-DeepSeek-V3.1",),
        "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
        always=True,
        thinks="<think>{}</think>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
        ends=(EOS_V3, EOS_V3),
        tokenizer="deepseek_v3",
    ),
    Hand(
        ("deepseek-ai-DeepSeek-V3.2",),
        DSML,
        as_dsml,
        always=True,
        thinks="<think>{}</think>",
        before="\n\n<｜DSML｜function_calls>\n",
        between="\n",
        after="\n</｜DSML｜function_calls>",
        ends=(EOS_V3, EOS_V3),
    ),
    Hand(
        ("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
        DSML,
        as_dsml,
        always=True,
        thinks="<think>{}</think>",
        before="\n\n<｜DSML｜tool_calls>\n",
        between="\n",
        after="\n</｜DSML｜tool_calls>",
        ends=(EOS_V3, EOS_V3),
    ),
    Hand(
        ("MiniMax-M2",),
        '<invoke name="{name}">\n{arguments}</invoke>',
        as_keys('<parameter name="{key}">{value}</parameter>\n'),
        always=True,
        thinks=THINK,
        before="\n<minimax:tool_call>\n",
        between="\n",
        after="\n</minimax:tool_call>",
        ends=("[e~[", "[e~["),
    ),
    Hand(
        ("ByteDance-Seed-OSS",),
        "<seed:tool_call>\n<function={name}>\n{arguments}</function>\n</seed:tool_call>",
        as_keys("<parameter={key}>{value}</parameter>\n"),
        thinks="<seed:think>{}</seed:think>\n",
        space="\n\n",
        between="\n",
        ends=("<seed:eos>", "<seed:eos>"),
    ),
    Hand(
        ("google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"),
        "<|tool_call>call:{name}{arguments}<tool_call|>",
        as_loose,
        thinks="<|channel>thought\n{}\n<channel|>",
        ends=("<turn|>", ""),
    ),
    Hand(
        ("LFM2.5-8B-A1B",),
        "{name}({arguments})",
        as_python,
        thinks="<think>{}</think>",
        before="<|tool_call_start|>[",
        between=", ",
        after="]<|tool_call_end|>",
    ),
    Hand(
        ("Cohere2MoE",),
        '    {"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {arguments}}',
        always=True,
        thinks="<|START_THINKING|>{}<|END_THINKING|>",
        says="<|START_TEXT|>{}<|END_TEXT|>",
        before="<|START_ACTION|>[\n",
        between=",\n",
        after="\n]<|END_ACTION|>",
        ends=(END_TURN, END_TURN),
    ),
    Hand(
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use",),
        '    {"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {arguments}}',
        thinks="<|START_THINKING|>{}<|END_THINKING|>",
        always=True,
        says="<|START_RESPONSE|>{}<|END_RESPONSE|>",
        before="<|START_ACTION|>[\n",
        between=",\n",
        after="\n]<|END_ACTION|>",
        ends=(END_TURN, END_TURN),
    ),
    Hand(
        ("MiniMax-M1",),
        LISTED,
        thinks=THINK,
        before="<tool_calls>\n",
        between="\n",
        after="\n</tool_calls>",
        ends=("<end_of_sentence>", "<end_of_sentence>"),
    ),
    Hand(
        ("NVIDIA-Nemotron-Nano-v2",),
        LISTED,
        always=True,
        thinks=THINK,
        space="\n",
        before="<TOOLCALL>[",
        between=", ",
        after="]</TOOLCALL>",
        ends=("\n<SPECIAL_12>", "\n<SPECIAL_12>"),
    ),
    Hand(
        ("GigaChat3.1-10B-A1.8B",),
        LISTED,
        before="<|function_call|>",
        alone=True,
        ends=("<|message_sep|>", "<|message_sep|>"),
    ),
    Hand(
        ("meetkai-functionary-medium-v3.1",),
        "<function={name}>{arguments}</function>",
        ends=("<|eot_id|>", "<|eom_id|>"),
        tokenizer="llama3_1",
    ),
    Hand(
        ("meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.3-70B-Instruct"),
        '{"name": "{name}", "parameters": {arguments}}',
        between="; ",
        ends=("<|eot_id|>", "<|eot_id|>"),
        tokenizer="llama3_1",
    ),
    Hand(
        ("mistralai-Ministral-3-14B-Reasoning-2512", "unsloth-mistral-Devstral-Small-2507"),
        "[TOOL_CALLS]{name}[ARGS]{arguments}",
        thinks="[THINK]{}[/THINK]",
        ends=EOS,
    ),
    Hand(
        ("mistralai-Mistral-Nemo-Instruct-2407",),
        LISTED,
        before="[TOOL_CALLS][",
        between=", ",
        after="]",
        ends=EOS,
    ),
    Hand(
        ("openai-gpt-oss-120b",),
        "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
        thinks="<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
        says="<|channel|>final<|message|>{}",
        says_before="<|channel|>commentary<|message|>{}<|end|><|start|>assistant",
        alone=True,
        ends=("<|return|>", "<|call|>"),
        tokenizer="gptoss",
    ),
)
