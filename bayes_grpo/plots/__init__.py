"""Plots of a fit: each takes ``ax=`` and returns the Axes it drew into."""

from bayes_grpo.plots.comparison import plot_comparison
from bayes_grpo.plots.forecast import plot_forecast
from bayes_grpo.plots.ppc import plot_ppc
from bayes_grpo.plots.prior import plot_prior_posterior, plot_prior_predictive
from bayes_grpo.plots.residuals import plot_residuals
from bayes_grpo.plots.stability import plot_stability

__all__ = [
    "plot_comparison",
    "plot_forecast",
    "plot_ppc",
    "plot_prior_posterior",
    "plot_prior_predictive",
    "plot_residuals",
    "plot_stability",
]
