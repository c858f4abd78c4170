"""What front ends say of prompts that another engine core computes first."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.protocol.from_frontend import ExpectPrompt, ForgetPrompt
from penstock_engine.core_state import CoreState
from penstock_engine.kv.keys import prefix_root, prompt_keys
from penstock_engine.sessions.frontends import FrontendSession


class ExpectHandler:
    """Enters them in the book, from which `Prefetcher` fetches."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def expected(self, frontend: FrontendSession, message: ExpectPrompt, now: float) -> None:
        """Raises InvalidRequest for what can be no prompt."""
        state, tokens = self._state, message.prompt_token_ids
        vocab, most = state.facts.model.config.vocab_size, state.facts.max_model_len
        if not 0 < len(tokens) <= most or not 0 <= min(tokens) <= max(tokens) < vocab:
            raise InvalidRequest(
                f"a prompt that is expected has 1 to {most} tokens below {vocab}; one of"
                f" {len(tokens)} isn't so"
            )
        if state.draining or not state.facts.config.cache.enable_prefix_caching:
            return
        root = prefix_root(message.tenant, message.cache_salt, message.adapter)
        keys = list(prompt_keys(root, tokens, state.facts.block_size))
        groups = len(state.scheduling.kv_groups)
        state.expected_prompts.add(frontend.session, message.number, keys, groups, now)

    def forgotten(self, frontend: FrontendSession, message: ForgetPrompt) -> None:
        self._state.expected_prompts.forget(frontend.session, message.number)
