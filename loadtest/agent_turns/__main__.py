"""What agents find of their prompts in the prefix cache: two at once, a growing history, each API.

    python -m loadtest.agent_turns                 # some minutes
    python -m loadtest.agent_turns --turns 4 --output FOLDER

Gateway and engine core are real; the worker computes nothing, and says what a model of the family
would write: thoughts, and calls in its own format. Templates of releases are taken from the folder
that PENSTOCK_RELEASES names; without it, there is only our own, which has the habit of Qwen3's and
GLM's: it shows thoughts only behind the user's last message.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence

from loadtest.agent_turns.agent import Turn, Work, turns_of
from loadtest.agent_turns.apis import APIS, Chat, Conversation, Messages
from loadtest.agent_turns.system import CONTEXT, Scripted, serving
from loadtest.agent_turns.writing import OF_RELEASES, OURS, Writing, releases
from loadtest.report import Document, Flags, Measurement, machine_line, say, table

AGENTS = 2
LEAST_FOUND = 0.95
"""The least share of the tokens that the request before had, while the agent works on one task."""
BOTH = ("Qwen-Qwen3-0.6B", "GLM-4.6")
"""Templates of releases that are measured through OpenAI's and Anthropic's API; others are through
chat completions, and our own through all."""
COLUMNS = {
    "template": "{template}",
    "API": "{api}",
    "the user speaks": "{asks}",
    "cached, of all prompt tokens": "{of_prompt:.1%}",
    "of tokens that the request before had": "{of_before:.1%}",
    "in the worst turn": "{worst:.1%}",
    "still in the prompt as they were": "{kept:.1%}",
}
Row = dict[str, object]


def measure(flags: Flags) -> Iterator[Document]:
    """Yields what is known after each template."""
    works = {"once": Work(flags.turns), "every 5 turns": Work(flags.turns, task=5)}
    rows: list[Row] = []
    for writing in (OURS, *(OF_RELEASES if releases() else ())):
        apis: Sequence[type[Conversation]] = (Chat,)
        if writing is OURS:
            apis = APIS
        elif writing.name in BOTH:
            apis = (Chat, Messages)
        with serving(writing) as system:
            number = 1
            for asks, work in works.items():
                for api in apis:
                    turns = asyncio.run(_agents(system, writing, api, work, number))
                    number += AGENTS
                    rows.append(row_of(turns, writing, api, asks))
                    say(table(COLUMNS, rows[-1:]))
        yield {"turns": flags.turns, "agents": AGENTS, "context": CONTEXT, "rows": rows}


async def _agents(
    system: Scripted, writing: Writing, api: type[Conversation], work: Work, number: int
) -> list[list[Turn]]:
    """The turns of each agent; they work at the same time."""
    agents = (turns_of(system, writing, api, work, number + at) for at in range(AGENTS))
    return list(await asyncio.gather(*agents))


def row_of(
    agents: Sequence[Sequence[Turn]], writing: Writing, api: type[Conversation], asks: str
) -> Row:
    """Shares from the second turn on, of all agents together."""
    turns = [turn for agent in agents for turn in agent[1:]]
    prompt, cached, before, shared = (
        sum(getattr(turn, name) for turn in turns)
        for name in ("prompt", "cached", "before", "shared")
    )
    lost = next((turn.where for turn in turns if turn.shared < turn.before), None)
    return {
        "template": writing.name,
        "api": api.name,
        "asks": asks,
        "of_prompt": cached / prompt,
        "of_before": cached / before,
        "worst": min(turn.cached / turn.before for turn in turns),
        "kept": shared / before,
        "first_lost": lost,
        "turns": [
            [[turn.prompt, turn.cached, turn.before, turn.shared] for turn in agent]
            for agent in agents
        ],
    }


def faults(document: Document) -> list[Row]:
    """Rows of one task in which too little was found."""
    rows = document["rows"]
    return [row for row in rows if row["asks"] == "once" and row["worst"] < LEAST_FOUND]


def markdown(document: Document) -> str:
    return (
        f"{machine_line(document)}\n\n"
        f"{document['agents']} agents at once, {document['turns']} turns each, with tool results "
        f"of 2,000 to 8,000 tokens in a turn and a context of {document['context']:,} tokens. "
        "Shares are from the second turn on. What a tool has just said can't have been cached, so "
        "the share of all prompt tokens has a bound of its own.\n\n"
        f"{table(COLUMNS, document['rows'])}\n"
    )


FLAGS = {"--turns": (20, "of each agent")}
COMMAND = Measurement("agent_turns", __doc__, measure, markdown, FLAGS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
