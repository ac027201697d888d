"""Bayesian modelling of GRPO training dynamics.

The public names are loaded on first use, so that ``import bayes_grpo`` is quick and pulls in
neither JAX nor ArviZ nor pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bayes_grpo.errors import InputError as InputError
    from bayes_grpo.examples import load_example as load_example
    from bayes_grpo.readers import read_run as read_run
    from bayes_grpo.readers import read_runs as read_runs
    from bayes_grpo.run import Run as Run
    from bayes_grpo.run import Settings as Settings

# Public name -> module that holds it.
_EXPORTS = {
    "InputError": "bayes_grpo.errors",
    "Run": "bayes_grpo.run",
    "Settings": "bayes_grpo.run",
    "load_example": "bayes_grpo.examples",
    "read_run": "bayes_grpo.readers",
    "read_runs": "bayes_grpo.readers",
}

__all__ = ["InputError", "Run", "Settings", "__version__", "load_example", "read_run", "read_runs"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'bayes_grpo' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
