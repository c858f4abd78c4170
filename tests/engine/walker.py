"""Random operations on a Harness, and what must hold when all is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.protocol.common import Grammar, Repetition, SessionTerms
from penstock.protocol.from_frontend import MediaLost
from penstock.protocol.from_worker import Progress, Result
from tests.engine.fake_media import drawn_media
from tests.engine.fake_model import EOS, VOCAB
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore, SequenceScore
from tests.engine.walked_harness import Choices


class Walker:
    """Operations by name. Each does nothing where it makes no sense."""

    def __init__(self, harness: Harness, choose: Choices) -> None:
        self.h = harness
        self.choose = choose
        self.operations = 0
        self.met = Counter[str]()
        """How often something happened that walks are for."""
        harness.compile_at_once = False
        harness.late = self._late
        self.has_media = False
        """Whether requests bring pictures: see histories/media.py."""
        self.has_sessions = False
        """Whether requests are turns of sessions: see histories/sessions.py."""
        self.gathers = True
        """Whether nobody reads some requests' tokens as they come."""
        if choose.whole(0, 1):
            # So that steps are held to some of what could be computed, as steps beside decodes are.
            harness.step_seconds = lambda: 0.05 * choose.whole(1, 8)
        self.walks = {
            "submit": (30, self.submit),
            "step": (100, self.step),
            "abort": (5, self.abort),
            "finish": (5, self.finish),
            "compile": (12, self.compile),
            "resume": (6, self.resume),
            "connect": (4, self.connect),
            "disconnect": (2, self.disconnect),
            "worker": (4, self.worker),
            "kill": (1, self.kill),
            "unfit": (1, self.unfit),
            "progress": (2, self.progress),
            "wait": (3, self.wait),
            "media": (0, self.media),
            "adapter": (0, self.adapter),
        }
        self._wheel = [name for name, (weight, _) in self.walks.items() for _ in range(weight)]

    def only(self, names: Sequence[str], **more: int) -> None:
        """From now on, only operations of these names, as often as before, and of others so
        often."""
        own = [name for name in names for _ in range(self.walks[name][0])]
        self._wheel = own + [name for name, weight in more.items() for _ in range(weight)]

    def compile_all(self) -> None:
        """The worker has compiled every grammar that it was asked for."""
        for number in list(self.h.worker.asked) if self.h.worker is not None else ():
            self.h.compiles(number)

    def outcome(self) -> Counter[str]:
        """How often something happened, as the walker and the core have counted it."""
        scheduling, counts = self.h.core.state.scheduling, self.h.core.state.counts
        return self.met + Counter(
            {
                "steps": scheduling.num_steps,
                "preempted": scheduling.num_preemptions,
                "reused": self.h.num_reused,
                "drafted": counts.drafted_tokens,
                "kept drafts": counts.kept_tokens,
                "read": counts.disk_blocks_read,
                "missed": counts.disk_blocks_missed,
                "prefetched from disk": counts.prefetched["disk"],
                "prefetched from host": counts.prefetched["host"],
            }
        )

    def _late(self) -> bool:
        late = self.choose.whole(0, 3) == 0
        self.met["deferred"] += late
        return late

    def walk(self) -> None:
        """One operation."""
        self.operations += 1
        self.walks[self._wheel[self.choose.whole(0, len(self._wheel) - 1)]][1]()

    def submit(self) -> None:
        front = self._front()
        if front is None:
            return
        whole = self.choose.whole
        longest = whole(1, self.h.facts.max_model_len + 1)
        prompt = self._prompt(whole(1, longest))
        if whole(0, 30) == 0:
            self.h.fail_prompts.add(tuple(prompt))
        salt = ("", "", "x", "y")[whole(0, 3)]
        ends = {**self._ends(), **self._terms()}
        grammar = self._grammar() if whole(0, 3) == 0 else None
        if grammar is not None and whole(0, 9):
            ends["ignore_eos"] = False
        self.h.submit(
            front,
            prompt,
            n=whole(1, 3),
            seed=whole(0, 9),
            salt=salt,
            grammar=grammar,
            media=drawn_media(whole, len(prompt)) if self.has_media and whole(0, 1) else None,
            prompt_logprobs=1 if whole(0, 2) == 0 else None,
            gathered=whole(0, 2) == 0 and self.gathers,
            session=self._session(),
            **ends,
        )

    def _prompt(self, length: int) -> list[int]:
        """Half of them begin as others do."""
        shared = self.choose.whole(0, 2 * length)
        common = [3 + at % 5 for at in range(min(shared, length))]
        return common + [self.choose.whole(0, VOCAB - 1) for _ in range(length - len(common))]

    def _terms(self) -> dict[str, Any]:
        """For whom, how soon, until when; sometimes what may not be asked for."""
        whole = self.choose.whole
        asks = self.h.core.state.scheduling.policy.ages or whole(0, 30) == 0
        return {
            "tenant": ("", "a", "b", "c")[whole(0, 3)],
            "priority": whole(-2, 3) if asks and whole(0, 1) else 0,
            "time_left_ms": whole(0, 20_000) if whole(0, 4) == 0 else None,
        }

    def _session(self) -> SessionTerms | None:
        """Few enough that they come back."""
        whole = self.choose.whole
        if not self.has_sessions or whole(0, 1):
            return None
        self.met["in a session"] += 1
        return SessionTerms(
            str(whole(0, 5)),
            whole(0, 40) / 10 if whole(0, 2) else None,
            whole(0, 100) / 10 if whole(0, 1) else None,
        )

    def _grammar(self) -> Grammar:
        """Few enough that requests share them; one in six is bad."""
        kind = "lark" if self.choose.whole(0, 5) == 0 else "regex"
        return Grammar(kind, str(self.choose.whole(0, 9)))

    def compile(self) -> None:
        """The worker is done with one of the grammars that it was asked for, not always the first;
        sometimes much later than it should."""
        if self.h.worker is not None and self.h.worker.asked:
            asked = list(self.h.worker.asked)
            self.met["compiled for many"] += self.h.core.state.grammars.num_waiting > 1
            self.h.compiles(asked[self.choose.whole(0, len(asked) - 1)])

    def _ends(self) -> dict[str, Any]:
        whole = self.choose.whole
        most = whole(0, 48)
        return {
            "max_tokens": most,
            "min_tokens": min(most, whole(0, 6)) if whole(0, 2) == 0 else 0,
            "ignore_eos": whole(0, 1) == 0,
            "stop_token_ids": (whole(0, VOCAB - 1), EOS[1]) if whole(0, 3) == 0 else (),
            "logprobs": 1 if whole(0, 3) == 0 else None,
            # Of so few ids, one comes twice in a row before long.
            "repetition": Repetition(1, whole(1, 3), 2) if whole(0, 7) == 0 else None,
        }

    def resume(self) -> None:
        """What a front end does when its session was lost: submits again what was emitted."""
        front = self._front()
        pairs = [
            request
            for gone in self.h.gone
            for request in gone.requests.values()
            if request.accepted and any(s.terminal is None for s in request.sequences.values())
        ]
        if front is None or not pairs:
            return
        if self.choose.whole(0, 1):
            pairs = [pair for pair in pairs if _in_prompt(pair)] or pairs
        old = pairs[self.choose.whole(0, len(pairs) - 1)]
        stopping = old.submit.stopping
        self.h.submit(
            front,
            old.submit.prompt_token_ids,
            emitted={i: s.tokens for i, s in old.sequences.items() if s.terminal is None},
            deaths=self.choose.whole(0, 4) // 2,
            seed=old.submit.sampling.seed,
            salt=old.submit.cache_salt,
            logprobs=old.submit.sampling.logprobs,
            max_tokens=stopping.max_tokens,
            min_tokens=stopping.min_tokens,
            ignore_eos=stopping.ignore_eos,
            stop_token_ids=stopping.stop_token_ids,
            repetition=stopping.repetition,
            tenant=old.submit.tenant,
            priority=old.submit.priority,
            time_left_ms=None if old.deadline is None else self._left_ms(old.deadline),
            grammar=old.submit.grammar,
            media=old.submit.media,
            adapter=old.submit.adapter,
            session=old.submit.session,
            prompt_logprobs=old.submit.sampling.prompt_logprobs,
            delivered=self._delivered(old),
        )

    def _delivered(self, old: RequestScore) -> int:
        """Tokens of the prompt that its front end knows all about."""
        first = old.sequences.get(0)
        if old.submit.sampling.prompt_logprobs is None or first is None:
            return 0
        self.met["resumed in a prompt"] += _in_prompt(old)
        return 1 + len(first.prompt_logprobs)

    def _left_ms(self, deadline: float) -> int:
        return max(0, round(1000 * (deadline - self.h.now)))

    def media(self) -> None:
        """A front end sends what it was asked for, not always in order; or the worker answers.
        Seldom a front end has lost an item, or says what makes no sense any more."""
        h, whole = self.h, self.choose.whole
        self.met["in line"] += bool(h.core.state.media._parked.line)
        self.met["waited for media"] += bool(h.core.state.media.num_waiting)
        for _ in range(whole(1, 4)):
            if h.asked_media and whole(0, 1):
                at = whole(0, len(h.asked_media) - 1)
                front, asked = h.asked_media[at]
                if whole(0, 9):
                    del h.asked_media[at]
                if front in h.fronts and whole(0, 30) == 0:
                    h.send(front, MediaLost(asked.request, asked.item))
                else:
                    h.send_media(front, asked)
            else:
                h.worker_answers()

    def adapter(self) -> None:
        """The worker is done with one of the adapters that it loads, not always the first."""
        if self.h.worker is not None and self.h.worker.adapters.loading:
            loading = list(self.h.worker.adapters.loading)
            self.h.load_adapter(loading[self.choose.whole(0, len(loading) - 1)])

    def abort(self) -> None:
        found = self._request()
        if found is not None:
            self.h.abort(*found)

    def finish(self) -> None:
        found = self._request()
        if found is not None:
            indexes = sorted(found[1].sequences)
            self.h.finish(*found, indexes[self.choose.whole(0, len(indexes) - 1)])

    def connect(self) -> None:
        if len(self.h.fronts) < 3:
            self.h.connect()

    def disconnect(self) -> None:
        """Rather one that has been told a part of a prompt's log-probabilities: that is rare."""
        told = [front for front in self.h.fronts if any(map(_in_prompt, front.requests.values()))]
        front = told[0] if told else self._front()
        if front is not None:
            self.h.disconnect(front)

    def step(self) -> None:
        if self.h.worker is None:
            self.worker()
        else:
            for _ in range(self.choose.whole(1, 3)):
                self.h.run_step()

    def worker(self) -> None:
        """A worker dials in, or one that loads becomes ready."""
        if self.h.setup is not None and self.h.worker is None:
            self.h.worker_ready(self._pool_size(), host_blocks=self._host_size())
        elif self.h.worker is None or self.choose.whole(0, 9) == 0:
            self.h.start_worker(ready=False)

    def _pool_size(self) -> int:
        """Mostly room for one to three of the longest sequences; sometimes not even for one."""
        size = self.h.facts.config.cache.kv_block_size
        one = -(-self.h.facts.max_model_len // size)
        if self.choose.whole(0, 9) == 0:
            return self.choose.whole(1, one)
        return self.choose.whole(one, 3 * one)

    def kill(self) -> None:
        if self.h.worker is not None:
            self.met["killed with media"] += bool(self.h.core.state.media._books.entries)
            running = self.h.core.state.scheduling.running.values()
            self.met["killed under a grammar"] += any(s.request.grammar for s in running)
            halfway = (s.reports_prompt and s.prompt_reported > 1 for s in running)
            self.met["killed in a prompt"] += any(halfway)
            self.met["killed while compiling"] += bool(self.h.worker.asked)
        self.h.kill_worker()

    def _host_size(self) -> int:
        return max(0, self.choose.whole(-4, 12))

    def unfit(self) -> None:
        """A result of another step: the session ends, the sequences go on."""
        if self.h.worker is not None:
            self.h.worker_says(Result(self.h.worker.last_step + 7, []))
            assert self.h.worker is None

    def progress(self) -> None:
        if self.h.worker is not None:
            self.h.worker_says(Progress(self.h.worker.last_step, self.choose.whole(0, 99)))

    def wait(self) -> None:
        self.h.now += self.choose.whole(1, 200) / 10
        self.h.settle()

    def end(self) -> None:
        """Drains the system, and checks what must hold of everything that ever happened."""
        self.h.compile_at_once = self.h.media_at_once = self.h.adapters_at_once = True
        if self.h.worker is None:
            self.h.start_worker(32)
        for number in list(self.h.worker.asked):
            self.h.compiles(number)
        self.h.now += 6.0  # Nobody waits for stored KV any more.
        self.h.settle()
        self.h.run()
        self.h.settle()
        pool = self.h.core.state.scheduling.pool
        assert pool is not None
        assert pool.num_free == pool.num_blocks
        media = self.h.core.state.media
        assert not media._books.needs
        assert not media.num_waiting
        assert not any(entry.pins for entry in media._books.entries.values())
        self.met["encodings dropped"] += sum(len(plan.dropped_media) for plan in self.h.worker.log)
        self.met["encoded"] += sum(self.h.worker.media.encoded.values())
        for front in self.h.fronts:
            for request in front.requests.values():
                assert request.accepted != (request.rejected is not None)
                if request.accepted:
                    self._check_ended(request)

    def _check_ended(self, request: RequestScore) -> None:
        for score in request.sequences.values():
            assert score.terminal is not None, "an accepted sequence without a terminal output"
            error = score.terminal.error
            if score.terminal.finish == "error":
                assert error is not None
                fails = tuple(request.submit.prompt_token_ids) in self.h.fail_prompts
                if score.terminal.error_code == "invalid_adapter":
                    assert request.submit.adapter is not None
                    bad = request.submit.adapter.digest in self.h.bad_adapters
                    assert bad or "died" in error
                    continue
                if score.terminal.error_code == "invalid_media":
                    assert request.submit.media is not None
                    continue
                poison = "died" in error and score.deaths >= 2
                assert fails or poison or "KV pool" in error or self._grammars_fault(request, score)

    def _grammars_fault(self, request: RequestScore, score: SequenceScore) -> bool:
        """Compiling took too long, or it is bad; masks were late too often."""
        grammar, error = request.submit.grammar, score.terminal.error
        if grammar is None:
            return False
        bad = grammar.kind == "lark" and "bad" in error
        code = score.terminal.error_code
        assert code == ("invalid_grammar" if bad else "complex_grammar")
        return bad or "compil" in error or "late" in error

    def _front(self) -> Front | None:
        fronts = self.h.fronts
        return fronts[self.choose.whole(0, len(fronts) - 1)] if fronts else None

    def _request(self) -> tuple[Front, RequestScore] | None:
        """Mostly a request that goes on; sometimes one that is long over."""
        front = self._front()
        if front is None or not front.requests:
            return None
        requests = list(front.requests.values())
        recent = requests[-8:] if self.choose.whole(0, 3) else requests
        return front, recent[self.choose.whole(0, len(recent) - 1)]


def _in_prompt(request: RequestScore) -> bool:
    """Whether its front end knows a part of what it asked about the prompt."""
    first = request.sequences.get(0)
    if request.submit.sampling.prompt_logprobs is None or first is None:
        return False
    return 0 < len(first.prompt_logprobs) < len(request.submit.prompt_token_ids) - 1
