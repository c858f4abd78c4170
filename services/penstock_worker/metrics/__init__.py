"""What a worker counts, and the port at which Prometheus reads it.

counts   of sessions, steps and tokens     phases   where the time of steps goes
port     /metrics and the health checks, beside the thread that computes
"""
