"""/v1/batches: files of requests, processed behind all requests that a client waits for."""
