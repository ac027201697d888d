"""Plots of a fit: each takes ``ax=`` and returns the Axes it drew into."""

from bayes_grpo.plots.forecast import plot_forecast
from bayes_grpo.plots.ppc import plot_ppc

__all__ = ["plot_forecast", "plot_ppc"]
