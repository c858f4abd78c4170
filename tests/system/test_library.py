"""`from penstock import LLM`, with a real engine and worker underneath."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from penstock import LLM, AsyncLLM, SamplingParams
from penstock.errors import StartupError
from penstock.net.runtime_dir import remove_abandoned
from testing import preloaded
from testing.serving import wait_until

pytestmark = [pytest.mark.timeout(600)]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
SMALL = {"max_model_len": 512, "num_kv_blocks": 128}


def penstock_descendants() -> dict[int, str]:
    """Titles of this process's living descendants that are Penstock's, by pid."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            title = " ".join(child.cmdline())
            if "penstock" in title and child.status() != psutil.STATUS_ZOMBIE:
                found[child.pid] = title
        except psutil.NoSuchProcess:
            continue
    return found


LIMIT = 400
"""Tokens that take much longer than the deadline."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(**SMALL) as llm:
        yield llm


def test_a_deadline_ends_what_is_not_finished(llm):
    long = SamplingParams(temperature=0, max_tokens=LIMIT, ignore_eos=True)
    short = SamplingParams(temperature=0, max_tokens=1)
    for attempt in range(8):  # How long one token takes is the machine's affair.
        outputs = llm.generate(
            ["Once", "Twice"], [long, short], use_tqdm=False, deadline_ms=500 * 2**attempt
        )
        first, second = (output.outputs[0] for output in outputs)
        assert first.finish_reason == "timeout"
        if second.finish_reason == "length":
            break
        assert second.finish_reason == "timeout"
    assert second.finish_reason == "length"
    came = len(first.token_ids)
    assert 0 < came < LIMIT
    some = SamplingParams(temperature=0, max_tokens=came, ignore_eos=True)
    undisturbed = llm.generate(["Once"], some, use_tqdm=False)[0].outputs[0]
    assert undisturbed.token_ids == first.token_ids
    gone = llm.generate(["Once"], long, use_tqdm=False, deadline_ms=0.01)[0]
    assert (gone.finished, gone.outputs[0].finish_reason) == (True, "timeout")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"priority": [1]}, "fcfs"),
        ({"priority": [1, 2]}, "one for each"),
        ({"priority": [1000]}, "priority"),
        ({"deadline_ms": -1}, "deadline_ms"),
    ],
)
def test_terms_that_cannot_be(llm, fields, words):
    with pytest.raises(ValueError, match=words):
        llm.generate(["Once"], GREEDY, use_tqdm=False, **fields)


def test_generate_keeps_the_order_and_the_parameters(llm):
    prompts = ["The capital of France is", "One, two, three,", "def add(a, b):"]
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (3, 9, 5)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 9, 5]
    assert all(output.finished for output in outputs)
    assert "Paris" in outputs[0].outputs[0].text
    alone = [llm.generate(p, q, use_tqdm=False)[0] for p, q in zip(prompts, params, strict=True)]
    assert [o.outputs[0].token_ids for o in alone] == [o.outputs[0].token_ids for o in outputs]


def test_token_id_prompts_are_the_same_as_their_text(llm):
    [by_text] = llm.generate("The capital of France is", GREEDY, use_tqdm=False)
    ids = by_text.prompt_token_ids
    [by_ids] = llm.generate({"prompt_token_ids": ids}, GREEDY, use_tqdm=False)
    assert by_ids.prompt is None
    assert by_ids.prompt_token_ids == ids
    assert by_ids.outputs[0].token_ids == by_text.outputs[0].token_ids


def test_prompts_share_what_they_begin_with_unless_a_salt_keeps_them_apart(llm):
    ids = list(range(1000, 1100))
    counts = []
    for salt in ("", "", "mine", "mine", "yours"):
        (output,) = llm.generate([{"prompt_token_ids": ids, "cache_salt": salt}], GREEDY)
        counts.append(output.num_cached_tokens)
    assert counts == [0, 96, 0, 96, 0]


def test_chat_uses_the_template(llm):
    question = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    params = SamplingParams(temperature=0, max_tokens=32)
    one, two = llm.chat([question, question], params, use_tqdm=False)
    assert "Paris" in one.outputs[0].text
    assert one.outputs[0].token_ids == two.outputs[0].token_ids
    assert one.outputs[0].finish_reason == "stop"


def test_seeds_n_and_logprobs(llm):
    params = SamplingParams(temperature=1.0, seed=11, n=3, max_tokens=8, logprobs=2)
    first, second = (llm.generate("Once upon a time", params, use_tqdm=False)[0] for _ in "ab")
    texts = [output.text for output in first.outputs]
    assert texts == [output.text for output in second.outputs]
    assert len(set(texts)) > 1
    for output in first.outputs:
        assert len(output.logprobs) == len(output.token_ids)
        total = sum(
            entry[t].logprob for t, entry in zip(output.token_ids, output.logprobs, strict=True)
        )
        assert output.cumulative_logprob == pytest.approx(total)
        assert all(2 <= len(entry) <= 3 for entry in output.logprobs)


def test_a_stop_string_ends_the_text(llm):
    [free] = llm.generate("One, two, three,", GREEDY, use_tqdm=False)
    text = free.outputs[0].text
    stop = text[len(text) // 2 :][:3]
    params = SamplingParams(temperature=0, max_tokens=12, stop=stop)
    [cut] = llm.generate("One, two, three,", params, use_tqdm=False)
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt_token_ids": [10**7]}, "vocabulary"),
        ({"prompt_token_ids": [1] * 600}, "context"),
        (7.5, "must be a string"),
    ],
)
def test_a_bad_prompt_is_a_value_error(llm, prompt, words):
    with pytest.raises(ValueError, match=words):
        llm.generate([prompt], GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user", "content": ""}], [{"role": "alien", "content": "x"}]]
)
def test_a_bad_conversation_is_a_value_error(llm, messages):
    with pytest.raises(ValueError):
        llm.chat(messages, GREEDY, use_tqdm=False)


def test_more_prompts_than_fit_at_once(llm):
    prompts = [f"Number {n} is" for n in range(80)]
    params = SamplingParams(temperature=0, max_tokens=4)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    again = llm.generate(prompts[17], params, use_tqdm=False)[0]
    assert again.outputs[0].token_ids == outputs[17].outputs[0].token_ids


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="no_such_thing"):
        LLM(no_such_thing=1)
    with pytest.raises(ValueError, match="dtype"):
        LLM(dtype="float99")
    with pytest.raises(StartupError, match="no-such-model"):
        LLM("/no/such/folder/no-such-model")


def belongs_to(pid: int, others: set[int]) -> bool:
    """Whether one of these has started it, or it has ended."""
    try:
        return bool(others & {each.pid for each in psutil.Process(pid).parents()})
    except psutil.NoSuchProcess:
        return True


def test_close_leaves_no_process_behind():
    before = set(penstock_descendants())
    llm = LLM(**SMALL)
    assert len(penstock_descendants()) > len(before)
    llm.close()
    llm.close()
    # Processes of other tests may start some at any time.
    since = penstock_descendants().keys() - before
    assert all(belongs_to(pid, before) for pid in since)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x", GREEDY)


ASYNC = """
async def start():
    async with AsyncLLM("nonsense"):
        pass
asyncio.run(start())
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('LLM("nonsense")', "StartupError: there is no model 'nonsense': no such file or folder"),
        (ASYNC, "StartupError: there is no model 'nonsense'"),
        ("LLM(max_modl_len=1)", "called 'max_modl_len'; did you mean 'max_model_len'?"),
        ('LLM(dtype="float8")', "InvalidRequest: dtype: 'float8' is not allowed; expected one of"),
        ("LLM(max_model_len=9000)", "StartupError: engine: max_model_len is 9000; smollm2-135m"),
        ('LLM("x", engine_endpoint="y")', "InvalidRequest: engine_endpoint was given with model"),
    ],
)
def test_a_script_that_asks_for_what_is_not_there_ends_with_one_line_about_it(
    line: str, said: str
) -> None:
    """Above it stand the script's own lines, and the one of the library that it called."""
    program = f"import asyncio\nfrom penstock import LLM, AsyncLLM\n{line}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 1
    shown = done.stderr.splitlines()
    assert said in shown[-1]
    frames = [each for each in shown if each.startswith("  File ") and "/asyncio/" not in each]
    ours = [each for each in frames if "penstock" in each]
    assert shown.count("Traceback (most recent call last):") == 1
    assert len(ours) <= (2 if line == ASYNC else 1), done.stderr


@pytest.mark.parametrize("ending", ["pass", "import os; os.kill(os.getpid(), 9)"])
def test_interpreter_exit_leaves_no_process_behind(ending: str):
    """Whether it leaves by the end of its program, in an interpreter of its own, or by SIGKILL."""
    program = (
        "import psutil\n"
        "from penstock import LLM, SamplingParams\n"
        "llm = LLM(max_model_len=512, num_kv_blocks=64)\n"
        "print(*[c.pid for c in psutil.Process().children(recursive=True)], flush=True)\n"
        f"{ending}\n"
    )
    with preloaded.executed() if ending == "pass" else nullcontext():
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=400
        )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 3, done.stderr
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), message=lambda: str(pids))


FORKING = """
import os, sys
from penstock import LLM, SamplingParams
llm = LLM(max_model_len=512, num_kv_blocks=64)
before = os.listdir(os.path.dirname(llm._llm._engine.endpoint.removeprefix("ipc://")))
pid = os.fork()
if pid == 0:
    try:
        llm.generate("Hello")
    except RuntimeError as error:
        print(error, flush=True)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
assert os.listdir(os.path.dirname(llm._llm._engine.endpoint.removeprefix("ipc://"))) == before
[output] = llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
print(len(output.outputs[0].token_ids))
"""


def test_a_forked_child_exits_at_once_and_leaves_the_engine_to_its_parent():
    """Nothing is logged either: the library is silent."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=400
    )
    lines = done.stdout.splitlines()
    assert "child by os.fork()" in lines[0]
    assert lines[1:] == ["7", "3"]
    assert (done.returncode, done.stderr) == (0, "")


KILLED = """
import os, signal
from penstock import LLM
llm = LLM(max_model_len=512, num_kv_blocks=64)
print(llm._llm._engine._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_start_sweeps_what_a_killed_program_left(tmp_path: Path):
    base = Path(tempfile.mkdtemp(prefix="pst-"))  # Short: sockets lie in it.
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(base)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True, timeout=400
    )
    wait_until(lambda: not psutil.pid_exists(int(done.stdout)))
    left = list(base.iterdir())
    assert left, "a killed program can't tidy up"
    remove_abandoned(base)
    assert list(base.iterdir()) == []
    base.rmdir()


def test_a_reset_prefix_cache_finds_nothing_of_before(llm):
    ids = list(range(2000, 2100))

    def cached(**more: str) -> int:
        (output,) = llm.generate([{"prompt_token_ids": ids, **more}], GREEDY, use_tqdm=False)
        return output.num_cached_tokens

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a")] == [0, 96, 0, 96]
    assert llm.reset_prefix_cache() is True
    assert [cached(), cached(cache_salt="a"), cached(), cached(cache_salt="a")] == [0, 0, 96, 96]


def test_an_engine_that_leaves_without_a_word_shows_the_end_of_its_log(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(StartupError, match="left before it was ready; the end of its log:"):
        LLM(**SMALL)


def test_async_llm_streams_and_aborts():
    async def run() -> None:
        async with AsyncLLM(**SMALL) as llm:
            seen = []
            async for output in llm.generate("Count: one, two,", GREEDY):
                seen.append(output.outputs[0].text)
            assert all(b.startswith(a) for a, b in itertools.pairwise(seen))
            stream = llm.generate("Tell me", SamplingParams(max_tokens=400, ignore_eos=True))
            assert not (await anext(stream)).finished, "it came as a whole"
            await stream.aclose()
            again = [o async for o in llm.generate("Count: one, two,", GREEDY)][-1]
            assert again.outputs[0].text == seen[-1]

    asyncio.run(run())
