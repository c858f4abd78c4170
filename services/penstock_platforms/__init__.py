"""The APIs of platforms that serve others' models: Hugging Face's Text Embeddings Inference (`tei`)
and Text Generation Inference (`tgi`), Cohere's, and what Amazon SageMaker asks of a container.

`penstock.config.bundled` names their routes, and nothing else of the system imports them.
"""
