"""The time to settle, against the eigenvalues of the oscillator."""

import numpy as np
import pytest

from bayes_grpo.reduction import oscillation_period, settling_time
from bayes_grpo.trajectory import momentum_and_pull


@pytest.mark.parametrize("damping", [0.05, 0.5, 0.9, 1.0, 1.1, 3.0, 1e3])
def test_three_time_constants_of_the_slowest_mode(damping):
    relaxation = 7.0
    frequency = 2 * damping / relaxation  # relaxation time = friction / stiffness
    motion = np.array([[0, 1], [-(frequency**2), -2 * damping * frequency]])
    slowest = -np.linalg.eigvals(motion).real.max()
    assert settling_time(relaxation, damping) == pytest.approx(3 / slowest, rel=1e-6)


def test_without_inertia_it_is_three_relaxation_times():
    assert settling_time(7.0) == 21.0
    np.testing.assert_allclose(settling_time(np.array([1.0, 2.0]), np.inf), [3.0, 6.0])


def test_a_relaxation_time_of_one_row_keeps_periods_above_four_rows():
    """What the lower bound in the model files promises, at its tightest: one row a tick."""
    relaxation_time = np.geomspace(1, 1000, 60)[:, None]
    damping = np.geomspace(0.01, 100, 400)[None, :]
    momentum, pull = momentum_and_pull(relaxation_time, damping)
    period = oscillation_period(momentum, pull)
    assert np.isfinite(period).any()
    assert np.nanmin(period) >= 4
    shortest = oscillation_period(*momentum_and_pull(np.array([0.8]), np.array([1.0])))
    assert shortest < 4
