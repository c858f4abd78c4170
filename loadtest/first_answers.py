"""Whether a newcomer's first answer is sane: 60 ordinary questions to the default model, sent as
the page sends them with empty settings: `python -m loadtest.first_answers`.

An answer is sane if it isn't empty, ended by itself within the limit, doesn't repeat itself and is
in the language of the question. Whether what can be looked up is right is counted apart: it says
more about 135 M parameters than about the server.

With `--starts` it asks nothing but one question, after each start of a server, and times both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from deploy.local import answers, free_port, running, wait
from loadtest.first_starts import measure_starts, page_of_starts
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table

AT_ONCE = 8
LEAST_SANE = 0.85
"""Share of the answers, below which the measurement has a fault."""
REPEATED_LINES, REPEATED_WORDS, WORDS = 4, 4, 6
"""A text loops if it has the same line or the same six words in a row so often."""
FEW_WORDS = 8
"""A text of so many words or fewer may be of any language: it is names and numbers."""


class Question(NamedTuple):
    """What is asked, the language of its answer, and words of which a right answer has one; none
    where no list of words says what is right."""

    text: str
    language: str = "en"
    right: tuple[str, ...] = ()


QUESTIONS = (
    Question("What is the capital of France?", right=("Paris",)),
    Question("What is the capital of Germany?", right=("Berlin",)),
    Question("What is the capital of Japan?", right=("Tokyo",)),
    Question("What is the largest planet in our solar system?", right=("Jupiter",)),
    Question("Who wrote Romeo and Juliet?", right=("Shakespeare",)),
    Question("What is the chemical symbol for water?", right=("H2O", "H₂O")),
    Question("How many days are in a week?", right=("7", "seven")),
    Question("How many legs does a spider have?", right=("8", "eight")),
    Question("In which year did the Second World War end?", right=("1945",)),
    Question("What is the boiling point of water in Celsius?", right=("100",)),
    Question("Which ocean is the largest?", right=("Pacific",)),
    Question("Who painted the Mona Lisa?", right=("Leonardo", "Vinci")),
    Question("What is the opposite of hot?", right=("cold",)),
    Question("What colour is the sky on a clear day?", right=("blue",)),
    Question("What do bees make?", right=("honey",)),
    Question("What is 2 + 2?", right=("4", "four")),
    Question("What is 7 times 8?", right=("56",)),
    Question("What is 10 minus 3?", right=("7", "seven")),
    Question("What is half of 50?", right=("25",)),
    Question("What is 100 divided by 4?", right=("25",)),
    Question("How many minutes are in two hours?", right=("120",)),
    Question("Hello!"),
    Question("Hi, how are you?"),
    Question("What can you do?"),
    Question("Who are you?"),
    Question("Thank you very much!"),
    Question("Good morning! I am a bit tired today."),
    Question("Tell me a joke."),
    Question("Tell me something interesting about cats."),
    Question("What should I cook for dinner tonight?"),
    Question("Explain in three sentences how rain forms."),
    Question("Explain in three sentences how a hydroelectric dam makes electricity."),
    Question("Why is the sky blue?"),
    Question("What is photosynthesis?"),
    Question("What is gravity, in simple words?"),
    Question("What is a computer program?"),
    Question("What is the difference between a lake and a river?"),
    Question("How does a bicycle stay upright?"),
    Question("Why do we sleep?"),
    Question("How do I boil an egg?"),
    Question("List three fruits."),
    Question("List five animals that live in the sea."),
    Question("Name three primary colours.", right=("red", "blue", "yellow")),
    Question("Give me three tips for sleeping better."),
    Question("Give me a short packing list for a weekend in the mountains."),
    Question("What are the four seasons?", right=("winter",)),
    Question("Write a short note that thanks a neighbour for watering the plants."),
    Question("Write a haiku about autumn."),
    Question("Write a two-sentence story about a dragon."),
    Question("Rewrite this politely: Give me the report now."),
    Question("Rewrite in the past tense: I walk to school and I eat an apple.", right=("walked",)),
    Question("Correct the spelling: I recieved teh letter yesterdey.", right=("received",)),
    Question("Summarise in one sentence: The cat sat on the mat. It was tired. It fell asleep."),
    Question("Write a Python line that prints hello.", "code", right=("print",)),
    Question("Write a Python function that adds two numbers.", "code", right=("def ",)),
    Question("How do I reverse a list in Python?", "code", right=("reverse", "[::-1]")),
    Question("Write an SQL query that selects all rows of a table.", "code", right=("SELECT",)),
    Question("Quelle est la capitale de la France ?", "fr", right=("Paris",)),
    Question("Was ist die Hauptstadt von Deutschland?", "de", right=("Berlin",)),
    Question("¿Cuál es la capital de España?", "es", right=("Madrid",)),
)

STOP_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the of and to a in is it you that for are on with as be this or by your can not",
        "fr": "le la les de des du et est un une en que qui dans pour pas sur vous il au ce avec",
        "de": "der die das und ist ein eine von zu den mit sich nicht es auf für im dem als auch",
        "es": "el la los las de y es un una en que por con para no del se su al lo como",
    }.items()
}


def problems(text: str, ended: bool, language: str) -> list[str]:
    """What is wrong with an answer, by its text alone; nothing if it is sane."""
    found = {
        "empty": not text.strip(),
        "did not end": not ended,
        "repeats itself": _loops(text),
        "other language": not _is_in(text, language),
    }
    return [name for name, holds in found.items() if holds]


def is_right(text: str, right: tuple[str, ...]) -> bool:
    """Whether the text has one of the words, not as a part of another."""
    return any(re.search(_as_a_word(word), text, re.IGNORECASE) for word in right)


def _as_a_word(word: str) -> str:
    before = r"(?<!\w)" if word[0].isalnum() else ""
    behind = r"(?!\w)" if word[-1].isalnum() else ""
    return before + re.escape(word) + behind


def _loops(text: str) -> bool:
    lines = Counter(line.strip() for line in text.splitlines() if re.search(r"\w", line))
    words = re.findall(r"\w+", text.lower())
    runs = Counter(tuple(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1))
    return max(lines.values(), default=0) >= REPEATED_LINES or (
        max(runs.values(), default=0) >= REPEATED_WORDS
    )


def _is_in(text: str, language: str) -> bool:
    """Tells a language by its script, and by stop words, of which its own must be the most."""
    letters = [letter for letter in text if letter.isalpha()]
    if sum(letter > "\u024f" for letter in letters) > 0.1 * len(letters):
        return False
    words = re.findall(r"\w+", text.lower())
    if language == "code" or len(words) <= FEW_WORDS:
        return True
    counts = {name: sum(word in own for word in words) for name, own in STOP_WORDS.items()}
    return counts[language] == max(counts.values())


def measure(flags: Flags) -> Document:
    """The answers of all questions and seeds, judged; or the times of starts."""
    if flags.starts:
        return measure_starts(flags)
    extra = _object(flags.body)
    with _server(flags) as url:
        rows = asyncio.run(_ask_all(url, flags, extra))
    sane = [row for row in rows if not row["problems"]]
    checked = [row for row in rows if row["right"] is not None]
    return {
        "model": flags.model,
        "limit": flags.limit,
        "seeds": flags.seeds,
        "plain": flags.plain,
        "body": extra,
        "answers": len(rows),
        "sane": len(sane) / len(rows),
        "right": sum(row["right"] for row in checked) / len(checked),
        "checked": len(checked),
        "finish": Counter(str(row["finish"]) for row in rows),
        "problems": Counter(name for row in rows for name in row["problems"]),
        "rows": rows,
    }


@contextlib.contextmanager
def _server(flags: Flags) -> Iterator[str]:
    """The address of a server: of one that runs, or of one that is started for it."""
    if flags.url:
        yield flags.url.rstrip("/")
        return
    url = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "penstock", "serve", flags.model, "--port", str(port)]
        with running(command, log, {}) as process:
            wait(lambda: answers(f"{url}/health/ready"), process, log, 300)
            yield url


async def _ask_all(url: str, flags: Flags, extra: dict[str, Any]) -> list[Document]:
    places = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=900) as client:
        listed = await client.get("/v1/models")
        card = listed.raise_for_status().json()["data"][0]
        base = {"model": card["id"], **({} if flags.plain else as_the_page_asks(card)), **extra}
        base["max_tokens"] = min(base.get("max_tokens", flags.limit), flags.limit)

        async def one(question: Question, seed: int) -> Document:
            async with places:
                return await _ask(client, base, question, seed)

        pairs = [(question, seed) for question in QUESTIONS for seed in range(flags.seeds)]
        return list(await asyncio.gather(*(one(*pair) for pair in pairs)))


def as_the_page_asks(card: dict[str, Any]) -> dict[str, Any]:
    """The fields that the page adds where nothing is set, by what the server says of the model."""
    return card.get("chat_params") or {}


async def _ask(
    client: httpx.AsyncClient, base: dict[str, Any], question: Question, seed: int
) -> Document:
    body = {key: value for key, value in base.items() if key != "system"}
    messages = [{"role": "user", "content": question.text}]
    if base.get("system"):
        messages.insert(0, {"role": "system", "content": base["system"]})
    answer = await client.post(
        "/v1/chat/completions", json={**body, "messages": messages, "seed": seed}
    )
    if answer.status_code != 200:
        raise SetupError(f"{question.text!r} got {answer.status_code}: {answer.text[:500]}")
    (choice,) = answer.json()["choices"]
    text = choice["message"]["content"] or ""
    finish = choice["finish_reason"]
    found = problems(text, finish == "stop", question.language)
    if found:
        say(f"{question.text} ({seed}): {', '.join(found)}")
    return {
        "question": question.text,
        "seed": seed,
        "finish": finish,
        "problems": found,
        "right": is_right(text, question.right) if question.right else None,
        "text": text[:400],
    }


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SetupError(f"--body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SetupError("--body must be a JSON object")
    return value


def faults(document: Document) -> str:
    """Says so if too few are sane, of those that the page asks for."""
    if "starts" in document:
        return ""
    low = document["sane"] < LEAST_SANE and not document["plain"]
    return f"{document['sane']:.0%} are sane, less than {LEAST_SANE:.0%}" if low else ""


def markdown(document: Document) -> str:
    """The figures, and the answers with problems; or those of starts."""
    if "starts" in document:
        return page_of_starts(document)
    bad = [
        {**row, "what": ", ".join(row["problems"]), "start": " ".join(row["text"].split())[:80]}
        for row in document["rows"]
        if row["problems"]
    ]
    columns = {
        "question": "{question}",
        "seed": "{seed}",
        "problem": "{what}",
        "begins": "`{start}`",
    }
    counted = ", ".join(f"{name} {count}" for name, count in document["problems"].items())
    ends = ", ".join(f"{name} {count}" for name, count in document["finish"].items())
    asked = "with the API's own defaults" if document["plain"] else "as the page asks"
    fields = json.dumps(document["body"]) if document["body"] else "none"
    return (
        f"{machine_line(document)}\n\n"
        f"{document['model']}: {len(QUESTIONS)} questions, {document['seeds']} seeds each, at most "
        f"{document['limit']} tokens; {asked}; further fields: {fields}.\n\n"
        f"**{document['sane']:.1%} of {document['answers']} answers are sane** "
        f"(problems: {counted or 'none'}; ends: {ends}). Of the {document['checked']} answers that "
        f"can be checked, {document['right']:.1%} hold what was asked for.\n\n"
        f"{table(columns, bad) if bad else ''}\n"
    )


FLAGS = {
    "--model": ("smollm2-135m", "that is served"),
    "--url": ("", "of a server that runs, in place of one that is started"),
    "--seeds": (3, "answers to each question"),
    "--limit": (1024, "most tokens of an answer; the page's own limit counts where it is lower"),
    "--plain": (False, "without the fields that the page adds: the API's own defaults"),
    "--starts": (0, "starts to time, in place of the questions"),
    "--earlier": ("", "Python of another Penstock, whose starts are timed too"),
    "--llamacpp": (False, "times starts of llama.cpp's server too"),
    "--body": ("{}", "JSON object of fields to add to each request; `system` is the system prompt"),
}
COMMAND = Measurement(
    "first_answers",
    __doc__,
    measure,
    markdown,
    FLAGS,
    head="# Is the first answer sane?\n\n`python -m loadtest.first_answers` has the questions.",
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
