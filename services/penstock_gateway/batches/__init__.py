"""/v1/batches: files of requests, worked through behind everything that somebody waits for."""
