"""What the tests share: double precision without touching JAX's global settings, and hypothesis."""

import jax
import pytest
from hypothesis import HealthCheck, settings

from bayes_grpo.precision import float64

# Compiling a program in the first example takes longer than any deadline; the same examples on
# every machine make a failure somewhere a failure everywhere.
settings.register_profile(
    "reproducible",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# pytest --hypothesis-profile=explore looks for new counterexamples.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("reproducible")


@pytest.fixture(scope="module")
def strict_float64():
    """JAX as the package uses it, and with broadcasting between ranks, usually a slip, an error."""
    with float64(), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="session")
def small_fit():
    """A converged fit of the first example, for what comes after a fit; not to be changed."""
    import bayes_grpo as bg

    return bg.fit(bg.load_example(), "exponential", draws=500, tune=400, progress=False)


@pytest.fixture(scope="module")
def x64():
    """JAX as the package uses it."""
    with float64():
        yield
