"""A closed- and open-loop load generator for any OpenAI-compatible server.

`python -m loadtest.generator --help`. From Python: `run(LoadOptions(...))`.
"""
