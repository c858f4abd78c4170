"""Measures a system: `penstock bench`, which the table in `penstock.cli.commands` names.

load     a closed- and open-loop load generator for any OpenAI-compatible server
offline  latency and throughput of the library, without HTTP
"""
