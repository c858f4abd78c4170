"""The Python library: one more front end, speaking the same protocol as the gateway.

sync             LLM: generate and chat, order kept, a progress bar
asynchronous     AsyncLLM: the same as streams in an event loop
engine_lifecycle how it starts and ends its engine core; engine_control: pauses, sleep, weights
background_loop  the event loop of LLM, in a thread
launched_engine  the child process that supervises an engine core and its worker
keywords         which keywords LLM takes, and vLLM's names for them
engine_args      EngineArgs, for scripts that parse a command line into them
beam             beam search over several prompts; beam_outputs: what it returns
outputs          RequestOutput and its parts, shaped as vLLM's
assembly         a RequestOutput, as it grows
transcribing     recordings to texts
pooling          encode, embed, classify and score
pooling_outputs  what they return, shaped as vLLM's
prompts          what may be given as a prompt or a conversation
model_tokenizer  what get_tokenizer() gives
progress         the progress bar
"""

from penstock.client import BeamSearchParams
from penstock.llm.asynchronous import AsyncLLM
from penstock.llm.beam_outputs import BeamSearchOutput, BeamSearchSequence
from penstock.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from penstock.llm.prompts import TextPrompt, TokensPrompt
from penstock.llm.sync import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "TextPrompt",
    "TokensPrompt",
]
