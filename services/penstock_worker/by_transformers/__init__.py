"""Decoders that no family describes: transformers' own modelling code over our paged KV cache and
with our row-invariant products."""
