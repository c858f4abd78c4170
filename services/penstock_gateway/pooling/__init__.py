"""Endpoints of pooling models: one file each, and what they share.

embeddings  POST /v1/embeddings      pooling   POST /pooling
score       POST /score, /v1/score   rerank    POST /rerank, /v1/rerank, /v2/rerank
classify    POST /classify

endpoint    their course, from raw body to reply     fields   request fields that all take
inputs      the `input` of a body                    scoring  pairs of texts to scores
"""
