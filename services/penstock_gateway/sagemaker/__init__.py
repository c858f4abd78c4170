"""What Amazon SageMaker asks of a container, as vLLM answers it."""
