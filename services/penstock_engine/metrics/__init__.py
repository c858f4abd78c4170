"""What the engine core counts, and the port at which Prometheus reads it.

counts     part of the core's state: plain numbers that no decision depends on
state      those and the core's own figures of one moment, as a value for another thread
observed   a core that takes times and hands out its state when it is asked for it
health     what its two health checks say         collector   Prometheus' families
port       all of these together, beside the process's loop
"""
