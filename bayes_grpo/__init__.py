"""Bayesian modelling of GRPO training dynamics.

The public names are loaded on first use, so that ``import bayes_grpo`` is quick and pulls in
neither JAX nor ArviZ nor pandas.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bayes_grpo import reduction as reduction
    from bayes_grpo.checks import check as check
    from bayes_grpo.checks import residual_autocorrelation as residual_autocorrelation
    from bayes_grpo.checks import residuals as residuals
    from bayes_grpo.comparison import compare as compare
    from bayes_grpo.convergence import ConvergenceWarning as ConvergenceWarning
    from bayes_grpo.errors import InputError as InputError
    from bayes_grpo.errors import ModelFileError as ModelFileError
    from bayes_grpo.examples import load_example as load_example
    from bayes_grpo.fit import Fit as Fit
    from bayes_grpo.fit import fit as fit
    from bayes_grpo.fit import load_fit as load_fit
    from bayes_grpo.model import Model as Model
    from bayes_grpo.model import available_models as available_models
    from bayes_grpo.model import load_model as load_model
    from bayes_grpo.plots import plot_comparison as plot_comparison
    from bayes_grpo.plots import plot_forecast as plot_forecast
    from bayes_grpo.plots import plot_ppc as plot_ppc
    from bayes_grpo.plots import plot_prior_posterior as plot_prior_posterior
    from bayes_grpo.plots import plot_prior_predictive as plot_prior_predictive
    from bayes_grpo.plots import plot_residuals as plot_residuals
    from bayes_grpo.plots import plot_stability as plot_stability
    from bayes_grpo.prior_predictive import prior_predictive as prior_predictive
    from bayes_grpo.readers import read_run as read_run
    from bayes_grpo.readers import read_runs as read_runs
    from bayes_grpo.run import CautionWarning as CautionWarning
    from bayes_grpo.run import Run as Run
    from bayes_grpo.run import Settings as Settings
    from bayes_grpo.sensitivity import sensitivity as sensitivity
    from bayes_grpo.stability import Stability as Stability
    from bayes_grpo.stability import stability as stability
    from bayes_grpo.stacking import Stack as Stack
    from bayes_grpo.stacking import stack as stack

# Public name -> module that holds it.
_EXPORTS = {
    "CautionWarning": "bayes_grpo.run",
    "ConvergenceWarning": "bayes_grpo.convergence",
    "Fit": "bayes_grpo.fit",
    "InputError": "bayes_grpo.errors",
    "Model": "bayes_grpo.model",
    "ModelFileError": "bayes_grpo.errors",
    "Run": "bayes_grpo.run",
    "Settings": "bayes_grpo.run",
    "Stability": "bayes_grpo.stability",
    "Stack": "bayes_grpo.stacking",
    "available_models": "bayes_grpo.model",
    "check": "bayes_grpo.checks",
    "compare": "bayes_grpo.comparison",
    "fit": "bayes_grpo.fit",
    "load_example": "bayes_grpo.examples",
    "load_fit": "bayes_grpo.fit",
    "load_model": "bayes_grpo.model",
    "plot_comparison": "bayes_grpo.plots",
    "plot_forecast": "bayes_grpo.plots",
    "plot_ppc": "bayes_grpo.plots",
    "plot_prior_posterior": "bayes_grpo.plots",
    "plot_prior_predictive": "bayes_grpo.plots",
    "plot_residuals": "bayes_grpo.plots",
    "plot_stability": "bayes_grpo.plots",
    "prior_predictive": "bayes_grpo.prior_predictive",
    "read_run": "bayes_grpo.readers",
    "read_runs": "bayes_grpo.readers",
    "residual_autocorrelation": "bayes_grpo.checks",
    "residuals": "bayes_grpo.checks",
    "sensitivity": "bayes_grpo.sensitivity",
    "stability": "bayes_grpo.stability",
    "stack": "bayes_grpo.stacking",
}

# Modules that are public by themselves.
_MODULES = ("reduction",)

__all__ = [*_EXPORTS, *_MODULES, "__version__"]


class _Package(ModuleType):
    """The package itself: a public function wins over the module of the same name.

    Importing ``bayes_grpo.fit`` makes Python bind the module to the name ``fit`` of the package,
    where users expect the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _EXPORTS.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name in _MODULES:
        return import_module(f"bayes_grpo.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'bayes_grpo' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
