"""The fixtures of the worker's tests."""

from tests.worker.conftest import default_folder, default_model, default_tokenizer  # noqa: F401
