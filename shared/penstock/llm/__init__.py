"""The Python library: one more front end, speaking the same protocol as the gateway.

sync             LLM: generate and chat, order kept, a progress bar
asynchronous     AsyncLLM: the same as streams in an event loop
launched_engine  the child process that supervises an engine core and its worker
beam             beam search over several prompts; beam_outputs: what it returns
outputs          RequestOutput and its parts, shaped as vLLM's
prompts          what may be given as a prompt or a conversation
"""

from penstock.client import BeamSearchParams
from penstock.llm.asynchronous import AsyncLLM
from penstock.llm.beam_outputs import BeamSearchOutput, BeamSearchSequence
from penstock.llm.outputs import CompletionOutput, Logprob, RequestOutput
from penstock.llm.sync import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
]
