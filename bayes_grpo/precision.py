"""Double precision where a likelihood needs it, whatever the user's own JAX settings are."""

from contextlib import AbstractContextManager

import jax


def float64() -> AbstractContextManager[None]:
    """Context in which JAX computes in float64; the global setting is left as it was.

    In float32 the filter's covariance difference loses all its digits at strong damping, and the
    log likelihood of a long run is off by nats.

    Returns
    -------
    AbstractContextManager
        Valid for the current thread only.
    """
    return jax.enable_x64(True)
