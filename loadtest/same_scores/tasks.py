"""The benchmark: tasks of lm-evaluation-harness on texts of our own, as nothing is downloaded."""

from __future__ import annotations

import heapq
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.first_answers import QUESTIONS
from loadtest.report import ROOT
from penstock.prepare.folder import TOKENIZER, load_manifest
from penstock.text.tokenizer import Tokenizer

CHOICES = (
    ("The capital of France is", "Paris", "Lyon", "Rome", "Berlin"),
    ("The capital of Japan is", "Tokyo", "Kyoto", "Seoul", "Beijing"),
    ("The capital of Egypt is", "Cairo", "Tunis", "Athens", "Nairobi"),
    ("The capital of Canada is", "Ottawa", "Toronto", "Boston", "Vancouver"),
    ("The largest planet in the solar system is", "Jupiter", "Mars", "Earth", "Venus"),
    ("The planet nearest to the sun is", "Mercury", "Saturn", "Neptune", "Earth"),
    ("Water is made of oxygen and", "hydrogen", "helium", "iron", "carbon"),
    ("The chemical symbol of gold is", "Au", "Ag", "Go", "Gd"),
    ("A triangle has", "three sides", "four sides", "five sides", "no sides"),
    ("Spiders have", "eight legs", "six legs", "ten legs", "two legs"),
    ("Bees make", "honey", "bread", "paper", "cheese"),
    ("The opposite of hot is", "cold", "warm", "heavy", "green"),
    ("The opposite of early is", "late", "fast", "soon", "blue"),
    ("Two plus two is", "four", "five", "seven", "three"),
    ("Seven times eight is", "fifty-six", "forty-two", "sixty-three", "fifteen"),
    ("Half of fifty is", "twenty-five", "thirty", "fifteen", "ten"),
    ("A week has", "seven days", "nine days", "twelve days", "five days"),
    ("An hour has", "sixty minutes", "ninety minutes", "ten minutes", "six seconds"),
    ("Plants take carbon dioxide from the", "air", "moon", "rocks", "fire"),
    ("Ice melts when it gets", "warm", "cold", "dark", "quiet"),
    ("To cut paper you use", "scissors", "a spoon", "a pillow", "a ladder"),
    ("You look at the stars through a", "telescope", "microscope", "keyboard", "blanket"),
    ("People who are ill see a", "doctor", "baker", "pilot", "painter"),
    ("Bread is baked in an", "oven", "umbrella", "envelope", "aquarium"),
    ("When it rains you open an", "umbrella", "oven", "orange", "egg"),
    ("Fish breathe through", "gills", "lungs", "leaves", "feathers"),
    ("Romeo and Juliet was written by", "Shakespeare", "Dickens", "Mozart", "Newton"),
    ("The Mona Lisa was painted by", "Leonardo da Vinci", "Picasso", "Monet", "Bach"),
    ("Gravity was described by", "Newton", "Chopin", "Rembrandt", "Homer"),
    ("The Second World War ended in", "1945", "1918", "1969", "1815"),
    ("The language of Brazil is", "Portuguese", "Spanish", "French", "Dutch"),
    ("The currency of Japan is the", "yen", "euro", "peso", "pound"),
    ("In Python, a function begins with", "def", "func", "sub", "proc"),
    ("In Python, a list of two numbers is", "[1, 2]", "<1, 2>", "list 1 2", "1 .. 2"),
    ("In SQL, rows are read with", "SELECT", "PRINT", "FETCHALL", "GRAB"),
    ("A byte has", "eight bits", "two bits", "a hundred bits", "no bits"),
    ("She dropped the glass, and it", "broke", "sang", "slept", "grew"),
    ("He was hungry, so he", "ate something", "went blind", "froze", "flew away"),
    ("The sun rises in the", "east", "west", "north", "cellar"),
    ("After winter comes", "spring", "autumn", "midnight", "Monday"),
)
"""What begins, how it goes on, and how it doesn't."""

TEXTS = (
    ROOT / "services" / "penstock_conversion" / "quantize" / "sample_text.txt",
    ROOT / "tests" / "worker" / "forward" / "perplexity_languages.txt",
)
"""The texts whose perplexity is asked for."""
WINDOW = 256
"""Tokens of a text that are scored at once."""
LONGEST = 4000
"""Characters of a text."""

_DATA = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
metadata: {{version: 1}}
"""
_CHOSEN = """\
output_type: multiple_choice
doc_to_text: "{{begin}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: " "
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
_ROLLING = """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
"""
_WRITTEN = """\
output_type: generate_until
doc_to_text: "{{asked}}"
doc_to_target: "{{right}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: %(tokens)d, %(more)s}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}
filter_list:
  - name: found
    filter:
      - {function: regex, regex_pattern: "(%(words)s)", group_select: 0}
      - {function: take_first}
"""
_SAMPLED = "do_sample: true, temperature: 0.8, top_p: 0.9, "


def write_tasks(folder: Path) -> dict[str, list[str]]:
    """Writes the tasks and their data. Returns the tasks' names, by the endpoint that they need."""
    asked = [question for question in QUESTIONS if question.right and question.language == "en"]
    words = "|".join(question.right[0] for question in asked)
    questions = [
        {"asked": f"Question: {each.text}\nAnswer:", "right": each.right[0]} for each in asked
    ]
    plain = [{"asked": each.text, "right": each.right[0]} for each in asked]
    told, top = "logprobs: 1", "logprobs: true, top_logprobs: 1"

    def written(more: str) -> str:
        return _WRITTEN % {"tokens": 24, "more": more, "words": words}

    tasks: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "choices": (_CHOSEN, [{"begin": begin, "choices": rest} for begin, *rest in CHOICES]),
        "texts": (_ROLLING, [{"text": text} for text in _texts()]),
        "answers": (written(told), questions),
        "sampled_answers": (written(_SAMPLED + told), questions),
        "chat_answers": (written(top), plain),
        "sampled_chat_answers": (written(_SAMPLED + top), plain),
    }
    for name, (settings, rows) in tasks.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        task = _DATA.format(name=name, data=data) + settings
        (folder / f"{name}.yaml").write_text(task, encoding="utf-8")
    chat = [name for name in tasks if "chat" in name]
    return {"completions": [name for name in tasks if name not in chat], "chat": chat}


def _texts() -> Iterator[str]:
    for path in TEXTS:
        yield path.read_text(encoding="utf-8")[:LONGEST]
    yield inspect.getsource(heapq)[:LONGEST]


def write_tokenizer(prepared: Path, folder: Path) -> None:
    """Writes a prepared model's tokenizer as transformers reads it."""
    [end, *_] = load_manifest(prepared).generation.eos_token_ids
    ended = tokenizer_of(prepared).decode([end], skip_special_tokens=False)
    (folder / "tokenizer.json").write_bytes((prepared / TOKENIZER).read_bytes())
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ended}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")


def tokenizer_of(prepared: Path) -> Tokenizer:
    """A prepared model's, without BOS."""
    raw = (prepared / TOKENIZER).read_bytes()
    return Tokenizer.from_bytes(raw, add_bos=False, bos_token_id=None)
