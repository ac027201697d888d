"""Simulated training runs whose truth is known: bandit, small neural policy, the models.

Names are loaded on first use, so that ``bayes-grpo simulate --help`` does not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayes_grpo.simulate.bandit import Bandit as Bandit
    from bayes_grpo.simulate.bandit import Curves as Curves
    from bayes_grpo.simulate.bandit import simulate_bandit as simulate_bandit
    from bayes_grpo.simulate.equilibrium import FixedPoint as FixedPoint
    from bayes_grpo.simulate.equilibrium import curvature as curvature
    from bayes_grpo.simulate.generator import Simulated as Simulated
    from bayes_grpo.simulate.generator import simulate_model as simulate_model
    from bayes_grpo.simulate.log import write_log as write_log
    from bayes_grpo.simulate.policy import PolicyRun as PolicyRun
    from bayes_grpo.simulate.policy import simulate_policy as simulate_policy
    from bayes_grpo.simulate.policy import write_policy_log as write_policy_log

# Public name -> module that holds it.
_EXPORTS = {
    "Bandit": "bayes_grpo.simulate.bandit",
    "Curves": "bayes_grpo.simulate.bandit",
    "FixedPoint": "bayes_grpo.simulate.equilibrium",
    "PolicyRun": "bayes_grpo.simulate.policy",
    "Simulated": "bayes_grpo.simulate.generator",
    "curvature": "bayes_grpo.simulate.equilibrium",
    "simulate_bandit": "bayes_grpo.simulate.bandit",
    "simulate_model": "bayes_grpo.simulate.generator",
    "simulate_policy": "bayes_grpo.simulate.policy",
    "write_log": "bayes_grpo.simulate.log",
    "write_policy_log": "bayes_grpo.simulate.policy",
}

__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'bayes_grpo.simulate' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
