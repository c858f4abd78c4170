"""The HTTP front end: OpenAI's endpoints over one session with an engine core. Imports no torch.

app        the ASGI application           service    what all endpoints share
boundary   request ids, last resort       body       reading a bounded request body
watch      disconnects and slow readers   events     server-sent events with held headers
errors     OpenAI's error object          openai/    one file per endpoint
operations what each route does           openapi    the document made of that
keys/      API keys, limits by the minute metrics/   GET /metrics
tracing/   OpenTelemetry traces
counted_client  what endpoints submit through
server     uvicorn with our bounds        process    the process around it all
"""
