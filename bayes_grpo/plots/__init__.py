"""Plots of a fit: each takes ``ax=`` and returns the Axes it drew into."""

from bayes_grpo.plots.forecast import plot_forecast
from bayes_grpo.plots.ppc import plot_ppc
from bayes_grpo.plots.stability import plot_stability

__all__ = ["plot_forecast", "plot_ppc", "plot_stability"]
