"""For trainers: log-probabilities with the served bits, and their gradients."""

from penstock_training.trainer_forward import TrainerForward

__all__ = ["TrainerForward"]
