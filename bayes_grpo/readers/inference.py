"""Settings that a log does not name but that follow from the arithmetic of its numbers."""

from bayes_grpo.readers.protocol import Parsed, Trainer


def infer(parsed: Parsed, trainer: Trainer) -> Parsed:
    """Add what the numbers of a run give away."""
    return parsed
