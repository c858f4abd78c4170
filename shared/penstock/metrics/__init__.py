"""Counting, and the port at which a process shows its counts and its health.

histogram   counts by bucket                families   as Prometheus' families, under one label
health      what a health check answers     port       the HTTP server of engine core and workers
"""
