"""GRPO on a softmax bandit: the smallest trainer whose dynamics are known in closed form.

One prompt, ``A`` answers (arms), a reward of 0 or 1.  The policy is ``π = softmax(θ)``, arm ``a``
is rewarded with probability ``success[a]``, and ``p = Σ π_a success_a`` is the expected reward.
One optimizer update moves the logits along the gradient of the GRPO loss on rollouts of a sampler
``π_old`` that may be stale:

    force_a = m_a - π_a Σ_b m_b  -  kl_weight (∂ KL(π‖π_ref) / ∂θ_a)
    m_a     = w_a E_{r | a}[π_old(a) A(r) keep(a, r)]
    A(r)    = (r - p_old) / sqrt(p_old (1 - p_old))   or   r - p_old

``w`` and ``keep`` say how the loss treats staleness (``ratio``):

``none``
    The first-order surrogate, ``w = 1``: because advantages add to 0 the whole reward force is that
    of the sampler, which is what the theory of arXiv 2606.30789 assumes.
``unclipped``
    ``w = π / π_old``: the reward force is ``∇p(θ) / sqrt(p_old (1 - p_old))``.  Lag drops out of
    the mean without std normalisation; with it, the stale standard deviation remains.
``clipped``
    As ``unclipped``, without the rollouts that the clipped surrogate ignores: a good one whose
    ratio is above ``1 + clip``, a bad one below ``1 - clip``.

The KL term is the exact gradient of ``KL(π‖π_ref)``, a sum over the arms without sampling noise, at
the current policy, as trainers take it; ``stale_force = "all"`` evaluates it at the sampler's.

With infinite groups (``group_size = None``) the drift is exact.  With finite ones, every update
draws ``prompts_per_step`` groups of ``group_size`` fresh rollouts; advantages use the group's own
mean and (population) standard deviation, and groups with equal rewards contribute nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.precision import float64
from bayes_grpo.simulate.bandit_update import COLUMNS, Kind, run_batch

type Numbers = float | Sequence[Any] | np.ndarray

Normalisation = Literal["std", "mean"]
Optimizer = Literal["sgd", "adam"]
LagPattern = Literal["hold", "constant"]
Ratio = Literal["none", "unclipped", "clipped"]
StaleForce = Literal["reward", "all"]

_MAX_SEED = 2**32


@dataclass(frozen=True, eq=False)
class Bandit:
    """Settings of one bandit, or of a batch of them.

    Every number may be an array: all are broadcast against each other to the shape of the batch.
    The switches and the group's size are common to a batch.

    Parameters
    ----------
    learning_rate
        Learning rate, > 0.
    momentum
        Heavy-ball momentum of SGD, or Adam's beta1, 0 <= momentum < 1.
    kl_weight
        Weight of the penalty on the divergence from the reference policy, >= 0.
    refresh_interval
        Updates between two refreshes of the sampler, >= 1; used if ``lag_pattern`` is ``"hold"``.
    lag
        Updates by which the sampler is behind, >= 0; used if ``lag_pattern`` is ``"constant"``.
        Before update ``lag`` the sampler is the initial policy.
    clip
        Half-width of the clip range, > 0; used if ``ratio`` is ``"clipped"``.
    success
        Probability that an arm is rewarded, shape (..., arms).
    reference_logits
        Logits of the reference policy, shape (..., arms); None: uniform.
    initial_logits
        Logits at the start, shape (..., arms); None: those of the reference.
    normalisation
        ``"std"``: advantages over the group's standard deviation (GRPO); ``"mean"``: only centred
        (Dr. GRPO).
    optimizer
        ``"sgd"``: heavy ball, ``v = momentum v + force``; ``"adam"``.
    lag_pattern, ratio, stale_force
        See the module.
    group_size
        Rollouts of a group; None: infinitely many, without sampling noise.
    prompts_per_step
        Groups of an update.
    beta2
        Adam's second-moment decay.

    Raises
    ------
    InputError
        If a value is out of range or shapes do not fit.
    """

    learning_rate: Numbers = 0.05
    momentum: Numbers = 0.9
    kl_weight: Numbers = 2.0
    refresh_interval: Numbers = 1
    lag: Numbers = 0
    clip: Numbers = 0.2
    success: Numbers = (1.0, 0.0)
    reference_logits: Numbers | None = None
    initial_logits: Numbers | None = None
    normalisation: Normalisation = "std"
    optimizer: Optimizer = "sgd"
    lag_pattern: LagPattern = "hold"
    ratio: Ratio = "clipped"
    stale_force: StaleForce = "reward"
    group_size: int | None = None
    prompts_per_step: int = 1
    beta2: Numbers = 0.999

    def __post_init__(self) -> None:
        for name, known in _SWITCHES.items():
            if getattr(self, name) not in known:
                raise InputError(
                    f"bandit {name} is {getattr(self, name)!r}: expected one of {', '.join(known)}"
                )
        for name, low, high, whole, low_is_valid in _RANGES:
            _check_range(name, getattr(self, name), low, high, whole, low_is_valid)
        if self.group_size is not None:
            _check_range("group_size", self.group_size, 2, np.inf, True, True)
        arms = np.shape(self.success)[-1] if np.ndim(self.success) else 0
        if arms < 2:
            raise InputError(f"bandit success is {self.success!r}: expected one number per arm")
        for name in ("reference_logits", "initial_logits"):
            given = getattr(self, name)
            if given is None:
                continue
            _check_range(name, given, -np.inf, np.inf, False, False)
            if np.ndim(given) == 0 or np.shape(given)[-1] != arms:
                raise InputError(
                    f"bandit {name} has shape {np.shape(given)}: expected {arms} logits, one per "
                    "arm of success"
                )
        try:
            _ = self.shape
        except ValueError:
            raise InputError(
                "bandit settings of different batch shapes: expected shapes that broadcast"
            ) from None

    @property
    def arms(self) -> int:
        """Number of arms."""
        return int(np.shape(self.success)[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the batch; () for a single bandit."""
        numbers = [np.shape(getattr(self, name)) for name in _NUMBERS]
        vectors = [np.shape(vector)[:-1] for vector in self._vectors().values()]
        return np.broadcast_shapes(*numbers, *vectors)

    def _vectors(self) -> dict[str, np.ndarray]:
        reference = np.zeros(self.arms) if self.reference_logits is None else self.reference_logits
        initial = reference if self.initial_logits is None else self.initial_logits
        found = {"success": self.success, "reference": reference, "initial": initial}
        return {name: np.asarray(value, dtype=float) for name, value in found.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """All numbers as one flat batch.

        Returns
        -------
        dict of ndarray
            The scalars with shape (settings,), and ``success``, ``reference`` and ``initial``
            logits with shape (settings, arms).
        """
        shape = self.shape
        count = int(np.prod(shape, dtype=int))
        flat = {
            name: np.broadcast_to(np.asarray(getattr(self, name), kind), shape).reshape(count)
            for name, kind in _NUMBERS.items()
        }
        vectors = {
            name: np.broadcast_to(value, (*shape, self.arms)).reshape(count, self.arms)
            for name, value in self._vectors().items()
        }
        return flat | vectors

    def settings(self) -> dict[str, Any]:
        """Settings of the run that a single bandit's log is of (names of `bayes_grpo.Settings`).

        Returns
        -------
        dict
            Plain numbers and words.

        Raises
        ------
        InputError
            If the bandit is a batch.
        """
        if self.shape:
            raise InputError(f"a batch of shape {self.shape} is many runs: expected one bandit")
        hold = self.lag_pattern == "hold"
        found = {
            "group_size": self.group_size,
            "prompts_per_step": self.prompts_per_step,
            "momentum": float(np.asarray(self.momentum)),
            "momentum_convention": "heavy_ball" if self.optimizer == "sgd" else "ema",
            "learning_rate": float(np.asarray(self.learning_rate)),
            "refresh_interval": int(np.asarray(self.refresh_interval)) if hold else 1,
            "lag_pattern": self.lag_pattern,
            "lag": 0 if hold else int(np.asarray(self.lag)),
            "updates_per_step": 1,
            "row_average": "single",
            "reward_bounds": [0.0, 1.0],
            "kl_weight": float(np.asarray(self.kl_weight)),
        }
        if self.group_size is None:  # no log has infinite groups, and nothing is sampled
            del found["group_size"], found["prompts_per_step"]
        return found


_SWITCHES: dict[str, tuple[str, ...]] = {
    "normalisation": get_args(Normalisation),
    "optimizer": get_args(Optimizer),
    "lag_pattern": get_args(LagPattern),
    "ratio": get_args(Ratio),
    "stale_force": get_args(StaleForce),
}
_NUMBERS: dict[str, type] = {
    "learning_rate": float,
    "momentum": float,
    "kl_weight": float,
    "refresh_interval": int,
    "lag": int,
    "clip": float,
    "beta2": float,
}
_ABOVE_ONE = float(np.nextafter(1.0, 2.0))
# Name, lowest, first value too high, whether whole, whether the lowest value itself is valid.
_RANGES: tuple[tuple[str, float, float, bool, bool], ...] = (
    ("learning_rate", 0.0, np.inf, False, False),
    ("momentum", 0.0, 1.0, False, True),
    ("kl_weight", 0.0, np.inf, False, True),
    ("refresh_interval", 1, np.inf, True, True),
    ("lag", 0, np.inf, True, True),
    ("clip", 0.0, np.inf, False, False),
    ("success", 0.0, _ABOVE_ONE, False, True),
    ("prompts_per_step", 1, np.inf, True, True),
    ("beta2", 0.0, 1.0, False, True),
)


def _check_range(
    name: str, value: Any, low: float, high: float, whole: bool, low_is_valid: bool
) -> None:
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"bandit {name} is {value!r}: expected numbers") from None
    fine = np.isfinite(numbers) & (numbers < high) & (numbers > low)
    if low_is_valid:
        fine |= numbers == low
    if whole:
        fine &= numbers == np.round(numbers)
    if not np.all(fine):
        wrong = numbers[~fine].flat[0]
        kind = "whole numbers" if whole else "numbers"
        bound = f"{'from' if low_is_valid else 'above'} {low:g}" if np.isfinite(low) else "finite"
        below = "" if np.isinf(high) else f" below {high:g}" if high != _ABOVE_ONE else " to 1"
        raise InputError(f"bandit {name} is {wrong:g}: expected {kind} {bound}{below}")


@dataclass(frozen=True, eq=False)
class Curves:
    """What simulated bandits did.

    Parameters
    ----------
    columns
        For every recorded quantity of `COLUMNS` an array of shape (batch..., updates).  Row ``t``
        is update ``t + 1``: ``reward``, ``reward_std`` (mean within a group) and
        ``zero_std_fraction`` are of the rollouts that it uses; ``kl``, ``entropy`` and
        ``eval_reward``, the exact expected reward, of the policy before it.
    logits
        Logits after the last update, shape (batch..., arms).
    """

    columns: dict[str, np.ndarray]
    logits: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def table(self) -> pd.DataFrame:
        """Rows of a log, one an update.

        Returns
        -------
        pandas.DataFrame
            Column ``step``, counted from 1, and the recorded ones.

        Raises
        ------
        InputError
            If there are several runs.
        """
        if self.logits.ndim > 1:
            raise InputError(
                f"{self.logits.shape[:-1]} bandits were simulated: expected one, for one table"
            )
        count = len(next(iter(self.columns.values())))
        return pd.DataFrame({"step": np.arange(1, count + 1), **self.columns})


def simulate_bandit(
    bandit: Bandit,
    n_updates: int,
    seed: int | Sequence[int] | np.ndarray = 0,
    record: Sequence[str] = COLUMNS,
) -> Curves:
    """Train one bandit, or a whole batch at once.

    Parameters
    ----------
    bandit
        The settings.
    n_updates
        Optimizer updates, >= 1.
    seed
        Seed of the rollouts.  A number gives every setting of a batch its own stream; an array of
        the batch's shape gives each the stream that it would have alone under that seed.
    record
        Which of `COLUMNS` to keep: large batches need memory for each.

    Returns
    -------
    Curves
        Equal for equal arguments.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    _check_range("n_updates", n_updates, 1, np.inf, True, True)
    _check_range("seed", seed, 0, _MAX_SEED, True, True)
    unknown = [name for name in record if name not in COLUMNS]
    if unknown or not record:
        raise InputError(f"record is {list(record)}: expected some of {', '.join(COLUMNS)}")
    shape, numbers = bandit.shape, bandit.arrays()
    count = len(numbers["learning_rate"])
    if np.ndim(seed) and np.shape(seed) != shape:
        raise InputError(f"seed has shape {np.shape(seed)}: expected the batch's {shape}")
    seeds = np.broadcast_to(np.asarray(seed, dtype=np.uint32), shape).reshape(count)
    places = np.zeros(count, np.uint32) if np.ndim(seed) else np.arange(count, dtype=np.uint32)
    kind = Kind(
        bandit.normalisation,
        bandit.optimizer,
        bandit.lag_pattern,
        bandit.ratio,
        bandit.stale_force,
        bandit.group_size,
        bandit.prompts_per_step,
        int(numbers["lag"].max()) + 1 if bandit.lag_pattern == "constant" else 1,
        int(n_updates),
        tuple(record),
    )
    with float64():
        columns, logits = run_batch(kind, numbers, seeds, places)
    return Curves(
        {
            name: np.asarray(values).T.reshape((*shape, n_updates))
            for name, values in zip(record, columns, strict=True)
        },
        np.asarray(logits).reshape((*shape, bandit.arms)),
    )
