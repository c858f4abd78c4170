"""OpenTelemetry traces: one span for each request, and where its time in the engine went.

`spans` and `tracer` alone import OpenTelemetry, which is an extra (`otel`): they are loaded where
--otlp-traces-endpoint asks for them.
"""
