"""Families that write arguments as marked values or in Python's form, and thoughts in marks of
their own."""

from tests.shared.formats.case import NOW, PARIS, Case, FormatCases

FULL = ("get_weather", {"city": "3", "days": 3, "tags": ["a", "b\n"], "sure": True})
QUOTE = '<|"|>'
M2 = (
    '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">3</parameter>\n'
    '<parameter name="days">3</parameter>\n<parameter name="tags">["a", "b\n"]</parameter>\n'
    '<parameter name="sure">true</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
    "</minimax:tool_call>"
)
SEED = (
    "<seed:tool_call>\n<function=get_weather>\n<parameter=city>3</parameter>\n"
    '<parameter=days>3</parameter>\n<parameter=tags>["a", "b\n"]</parameter>\n'
    "<parameter=sure>true</parameter>\n</function>\n</seed:tool_call>"
)


def dsml(block: str) -> str:
    text = (
        f'<BAR{block}>\n<BARinvoke name="get_weather">\n'
        '<BARparameter name="city" string="true">3</BARparameter>\n'
        '<BARparameter name="days" string="false">3</BARparameter>\n'
        '<BARparameter name="tags" string="false">["a", "b\\n"]</BARparameter>\n'
        '<BARparameter name="sure" string="false">true</BARparameter>\n</BARinvoke>\n'
        f'<BARinvoke name="now">\n</BARinvoke>\n</BAR{block}>'
    )
    return text.replace("BAR", "｜DSML｜")


MINIMAX_M2 = FormatCases(
    tools="minimax_m2",
    thoughts="minimax_m2",
    templates=("MiniMax-M2",),
    cases=(
        Case(M2, calls=(FULL, NOW)),
        Case(f"Hm.\n</think>\n\nSo:\n{M2}", "So:\n", "Hm.", (FULL, NOW), "ai\n<think>\n"),
    ),
)
SEED_OSS = FormatCases(
    tools="seed_oss",
    thoughts="seed_oss",
    templates=("ByteDance-Seed-OSS",),
    cases=(Case(f"<seed:think>Hm.</seed:think>\nSo:\n\n{SEED}", "So:\n\n", "Hm.", (FULL,)),),
)
V32 = FormatCases(
    tools="deepseek_v32",
    thoughts="deepseek_v3",
    templates=("deepseek-ai-DeepSeek-V3.2",),
    cases=(
        Case(dsml("function_calls"), calls=(FULL, NOW)),
        Case(
            f"Hm.</think>So:\n\n{dsml('function_calls')}", "So:\n\n", "Hm.", (FULL, NOW), "<think>"
        ),
    ),
)
V4 = FormatCases(
    tools="deepseek_v4",
    thoughts="deepseek_v3",
    templates=("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
    cases=(Case(dsml("tool_calls"), calls=(FULL, NOW)),),
)
LFM2 = FormatCases(
    tools="lfm2",
    thoughts="qwen3",
    templates=("LFM2.5-8B-A1B",),
    recognised=("LFM2-8B-A1B", "LFM2.5-Instruct"),
    cases=(
        Case(
            '<|tool_call_start|>[get_weather(city="Paris"), now()]<|tool_call_end|>So.',
            "So.",
            calls=(PARIS, NOW),
        ),
    ),
)
PYTHONIC = FormatCases(
    tools="llama4_pythonic",
    thoughts="",
    cases=(
        Case("[get_weather(city='Paris'), now()]", calls=(PARIS, NOW)),
        Case("<|python_start|>[get_weather(city='Paris')]<|python_end|>", calls=(PARIS,)),
        Case(
            r"[add(b='\ud83d\ude00 \ud83d')]",
            calls=(("add", {"b": "\U0001f600 ?"}),),
        ),
        Case("[other(x=1)]", said="[other(x=1)]"),
        Case("[1, 2]", said="[1, 2]"),
    ),
)
OLMO3 = FormatCases(
    tools="olmo3",
    thoughts="olmo3",
    cases=(
        Case(
            '<function_calls>\nget_weather(city="Paris")\nnow()\n</function_calls>',
            calls=(PARIS, NOW),
        ),
    ),
)
FUNCTIONARY = FormatCases(
    tools="functionary_v3_llama_31",
    thoughts="",
    templates=("meetkai-functionary-medium-v3.1",),
    cases=(
        Case(
            'So:<function=get_weather>{"city": "Paris"}</function><function=now>{}</function>',
            "So:",
            calls=(PARIS, NOW),
        ),
    ),
)
MAGISTRAL = FormatCases(
    tools="mistral",
    thoughts="mistral",
    templates=(
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "unsloth-mistral-Devstral-Small-2507",
    ),
    cases=(
        Case(
            '[THINK]Hm.[/THINK]So:[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
            "So:",
            "Hm.",
            (PARIS,),
        ),
    ),
)
GEMMA = (
    "call:get_weather{city:Q3Q,days:3,deep:{x:[{y:-1.5e3}, [ ]],Qa bQ:{}},sure:true,tags:[QaQ,"
    'Qb\n"\\Q]}'
)
DEEP = {"x": [{"y": -1500.0}, []], "a b": {}}
GEMMA_FULL = (FULL[0], {**FULL[1], "deep": DEEP, "tags": ["a", 'b\n"\\']})


def gemma(text: str, quote: str) -> str:
    return text.replace("Q", quote)


FUNCTIONGEMMA = FormatCases(
    tools="functiongemma",
    thoughts="",
    cases=(
        Case(
            f"<start_function_call>{gemma(GEMMA, '<escape>')}<end_function_call>",
            calls=(GEMMA_FULL,),
        ),
    ),
)
GEMMA4 = FormatCases(
    tools="gemma4",
    thoughts="gemma4",
    templates=("google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"),
    cases=(
        Case(
            f"<|channel>thought\nHm.\n<channel|>So:<|tool_call>{gemma(GEMMA, QUOTE)}<tool_call|>"
            "<|tool_call>call:now{}<tool_call|>",
            "So:",
            "Hm.",
            (GEMMA_FULL, NOW),
        ),
        Case(
            f"<|tool_call>call:get_weather{{city:{QUOTE}a{{b}},:{QUOTE}}}<tool_call|>",
            calls=(("get_weather", {"city": "a{b},:"}),),
        ),
        Case(
            "<|tool_call>call:get_weather{city:blue sky,}",
            calls=(("get_weather", {"city": "blue sky"}),),
        ),
        Case("<|tool_call>what{}<tool_call|>", said="<|tool_call>what{}<tool_call|>"),
        Case("<|channel>thought\nHm.\n<channel|>It rains.", "It rains.", "Hm."),
        Case("It rains.", "It rains.", prompt="<|channel>thought\n<channel|>"),
    ),
)
MARK = "]<]minimax[>["


def tagged(text: str) -> str:
    return text.replace("<", f"{MARK}<")


M3 = tagged(
    '<tool_call>\n<invoke name="get_weather"><city>3</city><days>3</days><tags><item>a</item>'
    "<item>b\n</item></tags><sure>true</sure></invoke>\n"
    '<invoke name="now"></invoke>\n</tool_call>'
)
MINIMAX_M3 = FormatCases(
    tools="minimax_m3",
    thoughts="minimax_m3",
    called=("MiniMax-M3",),
    cases=(
        Case(M3, calls=(FULL, NOW)),
        Case(f"<mm:think>Hm.</mm:think>So:\n{M3}", "So:\n", "Hm.", (FULL, NOW)),
        Case(f"</mm:think>So:{M3}", "So:", "", (FULL, NOW)),
        Case("It rains.", "It rains.", prompt="ai\n</mm:think>"),
        Case(
            tagged(
                '<tool_call>\n<invoke name="get_weather"><deep><deep><item>1</item><item><deep>'
                "x</deep></item></deep><a-b><c>2</c> <d></d></a-b></deep><tags></tags>"
                "<none><item>é</item><item>null</item></none></invoke></tool_call>"
            ),
            calls=(
                (
                    "get_weather",
                    {
                        "deep": {"deep": [1, {"deep": "x"}], "a-b": {"c": 2, "d": ""}},
                        "tags": [],
                        "none": ["é", None],
                    },
                ),
            ),
        ),
    ),
)
HY3_TEXT = """<tool_calls>
<tool_call>get_weather<tool_sep>
<arg_key>city</arg_key>
<arg_value>3</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
<arg_key>tags</arg_key>
<arg_value>["a", "b\\n"]</arg_value>
<arg_key>sure</arg_key>
<arg_value>true</arg_value>
</tool_call>
<tool_call>now<tool_sep>
</tool_call>
</tool_calls>""".replace(">", ":opensource>")
HY3 = FormatCases(
    tools="hy_v3",
    thoughts="hy_v3",
    called=("tencent-Hy3",),
    cases=(
        Case(HY3_TEXT, calls=(FULL, NOW)),
        Case(
            f"Hm.</think:opensource>So:{HY3_TEXT}",
            "So:",
            "Hm.",
            (FULL, NOW),
            "<think:opensource>",
        ),
    ),
)
STEP3_TEXT = (
    "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="get_weather"><steptml:parameter name="city">3</steptml:parameter>\n'
    '<steptml:parameter name="days">3</steptml:parameter>'
    '<steptml:parameter name="tags">["a", "b\\n"]</steptml:parameter>'
    '<steptml:parameter name="sure">true</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n'
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="now"></steptml:invoke>'
    "<｜tool_call_end｜><｜tool_calls_end｜>"
)
STEP3 = FormatCases(
    tools="step3",
    thoughts="step3",
    cases=(
        Case(f"Hm.</think>{STEP3_TEXT}", thought="Hm.", calls=(FULL, NOW)),
        Case(f"</think>So:{STEP3_TEXT}", said="So:", calls=(FULL, NOW)),
    ),
)


def minicpm(**values: str) -> str:
    pairs = "".join(f'<param name="{key}">{value}</param>' for key, value in values.items())
    return f'<function name="get_weather">{pairs}</function>'


MINICPM5 = FormatCases(
    tools="minicpm5",
    thoughts="qwen3",
    called=("openbmb-MiniCPM5-1B",),
    cases=(
        Case(
            "<think>\nHm.\n</think>\n\n"
            + minicpm(city="3", days="3", tags="['a', 'b\\n']", sure="True")
            + '\n<function name="now"></function>',
            "",
            "Hm.",
            (FULL, NOW),
        ),
        Case(
            minicpm(
                city="<![CDATA[a < </param>\n& ]] > b]]>",
                other="<![CDATA[1\n]]>",
                days="<![CDATA[7]]>",
                unit="<![CDATA[]]>",
            ),
            calls=(
                (
                    "get_weather",
                    {"city": "a < </param>\n& ]] > b", "other": "1\n", "days": 7, "unit": ""},
                ),
            ),
        ),
        Case(minicpm(city="<![CDATA"), calls=(("get_weather", {"city": "<![CDATA"}),)),
    ),
)
FUNCTIONARY_V32 = FormatCases(
    tools="functionary_v3_llama_3",
    thoughts="",
    called=("meetkai-functionary-medium-v3.2",),
    cases=(
        Case('get_weather\n{"city": "Paris"}>>>now\n{}', calls=(PARIS, NOW)),
        Case('all\nSo:\n>>>get_weather\n{"city": "Paris"}', "So:\n", calls=(PARIS,)),
        Case(">>>all\nIt rains.", "It rains."),
        Case("all\n>>> x\n>>> now()\n{}", ">>> x\n>>> now()\n{}"),
        Case("It rains.\n", "It rains.\n"),
    ),
)
ATEM = """<function_calls>
<invoke name="get_weather">
<parameter name="city">3</parameter>
<parameter name="days">3</parameter>
<parameter name="tags">["a", "b\\n"]</parameter>
<parameter name="sure">true</parameter>
</invoke>
</function_calls>""".replace("</", "</atem:").replace("<f", "<atem:f")
ATEM = ATEM.replace("<i", "<atem:i").replace("<p", "<atem:p")
ATEM_NOW = ATEM.replace("get_weather", "now").partition("<atem:p")[0] + (
    "</atem:invoke>\n</atem:function_calls>"
)
MUSE_GLIMMER = FormatCases(
    tools="muse_glimmer",
    thoughts="muse_glimmer",
    called=("muse-glimmer",),
    cases=(
        Case(
            " to=self<|message|>Hm, to=user.<|eom|><|start|>assistant to=get_weather<|message|>"
            f"{ATEM}<|eom|><|start|>assistant to=now<|message|>{ATEM_NOW}<|eot|>",
            "",
            "Hm, to=user.",
            (FULL, NOW),
            "<|start|>assistant",
        ),
        Case(
            " to=user<|message|>Set to=5.<|eom|><|start|>assistant to=self<|message|>Hm.<|eom|>",
            "Set to=5.",
            "Hm.",
            prompt="<|start|>assistant",
        ),
        Case(" to=user<|message|>It rains.<|eot|>", "It rains.", prompt="<|start|>assistant"),
    ),
)
MARKED_VALUES = (
    *(MINIMAX_M2, SEED_OSS, V32, V4, LFM2, PYTHONIC, OLMO3, FUNCTIONARY, MAGISTRAL),
    *(GEMMA4, FUNCTIONGEMMA, MINIMAX_M3, HY3, STEP3, MINICPM5, FUNCTIONARY_V32, MUSE_GLIMMER),
)
