"""What a training run of the small policy is made of, checked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from bayes_grpo.errors import InputError
from bayes_grpo.simulate.grpo import Loss


@dataclass(frozen=True)
class Design:
    """What is compiled into a training program.

    Parameters
    ----------
    group_size
        G; with ``exact`` the G whose mean drift is followed, None for infinite groups.
    prompts_per_step
        Prompts of one update, drawn with replacement; without meaning if ``exact``.
    rows, updates_per_row
        Logged rows, and updates that each is the mean of.
    loss
        The surrogate.
    optimizer
        ``"sgd"`` or ``"adam"``, whose second-moment decay is 0.999.
    momentum_convention
        Weight of a gradient in the momentum of ``"sgd"``: 1 - momentum (``"ema"``), or 1
        (``"heavy_ball"``).
    lag_pattern
        ``"hold"``: the sampler is refreshed every ``refresh_interval`` updates and frozen in
        between. ``"constant"``: it is always ``lag`` updates behind, on-policy with lag 0; before
        update ``lag`` it is the initial policy.
    longest_lag
        Largest ``lag`` that the program can do.
    reuse
        With ``"hold"``: every update between two refreshes uses the same rollouts again, instead
        of its own share of the rollouts of that sampler.
    exact
        Follow the expected update over all training prompts, without any sampling.
    """

    group_size: int | None = 8
    prompts_per_step: int = 32
    rows: int = 100
    updates_per_row: int = 1
    loss: Loss = field(default_factory=Loss)
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum_convention: Literal["ema", "heavy_ball"] = "ema"
    lag_pattern: Literal["hold", "constant"] = "hold"
    longest_lag: int = 0
    reuse: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        if self.group_size is None and not self.exact:
            raise InputError("group_size is None: expected a number unless the update is exact")
        lowest = {"prompts_per_step": 1, "rows": 1, "updates_per_row": 1, "longest_lag": 0}
        for name, low in {**lowest, "group_size": 2}.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"{name} is {value}: expected a whole number of at least {low}")


class Hyper(NamedTuple):
    """What may differ between runs of one program; scalars, or arrays of one length.

    Parameters
    ----------
    learning_rate, momentum, kl_weight
        eta, mu (Adam's beta1), beta.
    refresh_interval
        Updates between two refreshes of the sampler (``"hold"``).
    lag
        Updates that the sampler is behind (``"constant"``).
    seed
        Of the sampling.
    """

    learning_rate: Any = 1.0
    momentum: Any = 0.9
    kl_weight: Any = 0.5
    refresh_interval: Any = 1
    lag: Any = 0
    seed: Any = 0


def in_line(hyper: Hyper) -> Hyper:
    """Bring the settings of many runs to one length.

    Parameters
    ----------
    hyper
        Scalars or arrays of one length.

    Returns
    -------
    Hyper
        Arrays of one length.

    Raises
    ------
    InputError
        If arrays differ in length.
    """
    arrays = [jnp.atleast_1d(jnp.asarray(value)) for value in hyper]
    lengths = {len(array) for array in arrays} - {1}
    if len(lengths) > 1:
        raise InputError(f"settings of the runs have lengths {sorted(lengths)}: expected one")
    count = lengths.pop() if lengths else 1
    kinds: tuple[Any, ...] = (float, float, float, jnp.int32, jnp.int32, jnp.uint32)
    return Hyper(
        *(
            jnp.broadcast_to(array, (count,)).astype(kind)
            for array, kind in zip(arrays, kinds, strict=True)
        )
    )


def check_hyper(design: Design, hyper: Hyper) -> None:
    """Check the numbers of runs.

    Parameters
    ----------
    design
        Gives the longest lag.
    hyper
        Scalars or arrays.

    Raises
    ------
    InputError
        If a number is out of range.
    """
    checks: dict[str, tuple[Callable[[Any], Any], str]] = {
        "learning_rate": (lambda x: x > 0, "a positive number"),
        "momentum": (lambda x: (x >= 0) & (x < 1), "a number with 0 <= mu < 1"),
        "kl_weight": (lambda x: x >= 0, "a number of at least 0"),
        "refresh_interval": (lambda x: x >= 1, "a whole number of at least 1"),
        "lag": (
            lambda x: (x >= 0) & (x <= design.longest_lag),
            f"0 to the longest lag of the design, {design.longest_lag}",
        ),
        "seed": (lambda x: x >= 0, "a whole number of at least 0"),
    }
    for name, (valid, expected) in checks.items():
        value = jnp.asarray(getattr(hyper, name))
        if not bool(jnp.all(valid(value))):
            raise InputError(f"{name} is {getattr(hyper, name)}: expected {expected}")
