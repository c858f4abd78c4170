"""Measuring a system: `penstock bench`.

load     a closed- and open-loop load generator for any OpenAI-compatible server
offline  latency and throughput of the library, without HTTP
machine  what a result says about the machine that it was measured on
"""
