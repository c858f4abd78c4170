"""The production scheduler driving the production runner, in one process and without sockets, so
that nothing but the numbers can differ. Every message goes over the wire format."""

from __future__ import annotations

import queue
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.config.settings import (
    CacheSettings,
    EngineConfig,
    LoraSettings,
    ModelSettings,
    PreemptionMode,
    SchedulerSettings,
    SpeculativeSettings,
    WorkerSettings,
)
from penstock.prepare import load_manifest
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Stopping, TokenLogprobs, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import (
    FetchedKV,
    FoundKV,
    FromWorker,
    WorkerHello,
)
from penstock.protocol.to_frontend import Outputs, ToFrontend
from penstock.protocol.to_worker import FetchKV, LookUpKV, Plan, SaveKV, Setup, ToWorker
from penstock.protocol.worker_resources import CompileGrammar, LoadAdapter
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_worker.loading.load import load
from penstock_worker.loading.loaded import Loaded

FRONT, WORKER = b"front", b"worker"


@dataclass
class Heard:
    """What the front end was told of one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finished: bool = False
    drafted: int = 0
    kept: int = 0
    """How many of the drafted tokens were kept."""


@dataclass(frozen=True)
class Numerics:
    """What the bits may depend on."""

    backend: str
    dtype: str
    kv_cache: str = "auto"
    batch_invariant: bool = False
    """Whether results don't depend on the batch, of a backend that computes otherwise if it isn't
    told so."""


@dataclass(frozen=True)
class Way:
    """One way of running: what must not change any bit."""

    block_size: int
    budget: int
    num_blocks: int
    threads: int = 2
    prefix_caching: bool = True
    preemption: PreemptionMode = "auto"
    host_kib: int = 0
    steps: int = 2
    speculation: str = "off"
    checkpoints: int | None = None
    """Tokens between two of them, for a model with recurrent layers; None: as it is by itself."""
    encoder_caching: bool = True
    max_model_len: int = 256
    max_num_seqs: int = 64
    eager: bool = False
    """Whether no step is captured."""
    disk: str = ""
    """Folder of the tier on disk; empty for none."""
    disk_kib: int = 2**20
    store: str = ""
    """Name of the plug-in that keeps blocks; empty for none."""
    store_address: str = ""
    endpoint: str = ""
    """Where others ask for blocks; empty: nowhere."""
    peers: str = ""
    """Where others are asked, with commas."""
    key_file: str = ""
    """The file of the key that blocks are encrypted with; empty: they aren't."""
    audit_share: float = 0.0
    """Of requests whose answers are computed again."""
    max_loras: int = 0
    """Adapters at a time; 0: none are served."""
    cpu_experts: str = "off"


class System:
    """An EngineCore and a Runner, hand in hand."""

    def __init__(
        self, folder: Path, numerics: Numerics, way: Way, tokenizer: bytes = b"{}"
    ) -> None:
        self.core = EngineCore(make_facts(folder, numerics, way, tokenizer))
        self.heard: dict[tuple[int, int], Heard] = {}
        """What was heard, by request and index."""
        self.loaded: Loaded | None = None
        self.now = 0.0
        self.reused = 0
        """Tokens that sequences found computed when they started."""
        self.drafted = self.kept = 0
        """Tokens of all steps."""
        self.core.frontend_opened(FRONT, Hello(list(PROTOCOL_VERSIONS), "test", 0), 0.0)
        self.core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)

    def submit(
        self,
        number: int,
        prompt: list[int],
        wanted: int,
        sampling: TokenSampling,
        n: int = 1,
        **more: Any,
    ) -> None:
        self.heard |= {(number, index): Heard() for index in range(n)}
        stopping = Stopping(max_tokens=wanted, ignore_eos=True)
        sequences = [OpenSequence(index) for index in range(n)]
        submit = Submit(number, str(number), prompt, sequences, sampling, stopping, **more)
        self.core.frontend_received(FRONT, submit, 0.0)

    def run(self) -> None:
        """Until every request has ended."""
        while not all(heard.finished for heard in self.heard.values()):
            self.run_step()

    def run_step(self) -> None:
        """Hears what a step gives."""
        for message, _ in self.step():
            if isinstance(message, Outputs):
                self._hear(message)

    def step(self) -> list[tuple[ToFrontend, tuple[bytes, ...]]]:
        """The core steps, and the worker does what it is told. Returns what the front end gets."""
        effects = self.core.step(self.now)
        self.core.check()
        assert not effects.end_workers
        assert not effects.end_frontends
        for _, message, _ in effects.to_workers:
            self._work(recode(message, ToWorker))
        return [(message, frames) for _, message, frames in effects.to_frontends]

    def _work(self, message: ToWorker) -> None:
        if isinstance(message, Setup):
            self.loaded = load(message)
            answer: FromWorker = self.loaded.ready
        elif isinstance(message, CompileGrammar | LoadAdapter):
            answer = self._made(message)
        elif isinstance(message, SaveKV):
            assert self.loaded is not None
            self.loaded.runner.receive(message, self._answer)
            return
        elif isinstance(message, LookUpKV | FetchKV):
            answer = self._from_disk(message)
        else:
            assert isinstance(message, Plan)
            assert self.loaded is not None
            starts = {work.slot: work.start for work in message.work}
            self.reused += sum(starts.get(new.slot, 0) for new in message.admitted)
            answer = self.loaded.runner.execute(message)
            self.drafted += sum(slot.drafted for slot in answer.slots)
            self.kept += sum(len(slot.more) for slot in answer.slots)
        self._answer(answer)

    def _answer(self, answer: FromWorker) -> None:
        self.core.worker_received(WORKER, recode(answer, FromWorker), self.now)

    def _made(self, message: CompileGrammar | LoadAdapter) -> FromWorker:
        assert self.loaded is not None
        answers: queue.SimpleQueue[FromWorker] = queue.SimpleQueue()
        self.loaded.runner.features.hear(message, (), answers.put)
        return answers.get(timeout=60)

    def _from_disk(self, message: LookUpKV | FetchKV) -> FoundKV | FetchedKV:
        assert self.loaded is not None
        answers: queue.SimpleQueue[FoundKV | FetchedKV] = queue.SimpleQueue()
        if not self.loaded.runner.features.hear(message, (), answers.put):
            self.loaded.runner.receive(message, answers.put)
        return answers.get(timeout=60)

    def _hear(self, outputs: Outputs) -> None:
        for output in outputs.outputs:
            heard = self.heard[output.request, output.sequence]
            heard.tokens += output.tokens
            heard.logprobs += output.logprobs or []
            heard.prompt_logprobs += output.prompt_logprobs or []
            heard.drafted += output.drafted
            heard.kept += max(0, len(output.tokens) - 1)
            heard.finished = output.finish is not None
            assert output.finish in (None, "length"), output


def recode(message: object, union: object) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union)


def make_facts(folder: Path, numerics: Numerics, way: Way, tokenizer: bytes) -> EngineFacts:
    config = EngineConfig(
        model=ModelSettings(dtype=numerics.dtype, max_model_len=way.max_model_len),
        worker=WorkerSettings(
            attention_backend=numerics.backend,
            threads=way.threads,
            batch_invariant=numerics.batch_invariant,
            enforce_eager=way.eager,
            cpu_experts=way.cpu_experts,
        ),
        cache=CacheSettings(
            kv_block_size=way.block_size,
            num_kv_blocks=way.num_blocks,
            kv_cache_dtype=numerics.kv_cache,
            enable_prefix_caching=way.prefix_caching,
            enable_encoder_cache=way.encoder_caching,
            host_kv_gib=way.host_kib / 2**20,
            state_checkpoint_tokens=way.checkpoints,
            disk_kv_dir=way.disk or None,
            disk_kv_gib=way.disk_kib / 2**20,
            kv_store=way.store or None,
            kv_store_address=way.store_address,
            disk_kv_key_file=way.key_file or None,
            kv_endpoint=way.endpoint or None,
            kv_peers=way.peers,
        ),
        lora=LoraSettings(enable_lora=way.max_loras > 0, max_loras=max(1, way.max_loras)),
        speculation=SpeculativeSettings(speculative_config=way.speculation),
        scheduler=SchedulerSettings(
            max_num_seqs=way.max_num_seqs,
            max_num_batched_tokens=way.budget,
            preemption_mode=way.preemption,
            max_steps_in_flight=way.steps,
            audit_share=way.audit_share,
        ),
    )
    return EngineFacts(
        config=config,
        model=load_manifest(folder),
        folder=str(folder),
        tokenizer=tokenizer,
        template=b"",
        boot="00",
        created=0,
    )


def prompt(length: int, seed: int) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(3, 40_000) for _ in range(length)]
