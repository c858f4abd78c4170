"""The endpoints of pooling models: embeddings, scores, ranks, classes."""
