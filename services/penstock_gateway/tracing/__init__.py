"""OpenTelemetry traces: one span for each request, and where its time in the engine went.

`tracer` alone imports OpenTelemetry, which is an extra (`otel`): it is loaded where
--otlp-traces-endpoint asks for traces.
"""
