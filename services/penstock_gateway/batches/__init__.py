"""/v1/batches: files of requests, processed after all requests that a client waits for."""
