"""APIs of other servers over the gateway's endpoints, a folder for each: Anthropic's Messages and
their batches, Ollama's, llama-server's.

`penstock.config.bundled` names their routes, and nothing else of the system imports them.
"""
