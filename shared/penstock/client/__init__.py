"""The front end's half of the protocol, shared by the gateway and the Python library.

engine_client   the session with the engine core; submits, and submits again after a crash
generation      one request on its way: token ids in, text deltas out
timing          where a request's time went
pool_request    one request to a pooling model
pooling_inputs  texts, pairs and ids on their way to one
sequence_text   detokenising and stop strings of one sequence
model_text      tokenizer and chat template, as the engine's Welcome brought them
"""

from penstock.client.engine_client import EngineClient
from penstock.client.generation import Generation, SequenceDelta
from penstock.client.model_text import ModelText

__all__ = ["EngineClient", "Generation", "ModelText", "SequenceDelta"]
