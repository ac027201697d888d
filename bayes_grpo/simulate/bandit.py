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
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array, lax

from bayes_grpo.errors import InputError
from bayes_grpo.precision import float64

type Numbers = float | Sequence[Any] | np.ndarray

Normalisation = Literal["std", "mean"]
Optimizer = Literal["sgd", "adam"]
LagPattern = Literal["hold", "constant"]
Ratio = Literal["none", "unclipped", "clipped"]
StaleForce = Literal["reward", "all"]

COLUMNS = (
    "reward",
    "reward_std",
    "zero_std_fraction",
    "kl",
    "entropy",
    "clip_fraction",
    "eval_reward",
)
"""What can be recorded of every update, under the names of a run's table."""

ADAM_EPSILON = 1e-8

LARGEST_LOG_RATIO = 30.0
"""Importance ratios beyond e^30 are infinite for every purpose but keep 0 times ratio at 0."""

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


class _Kind(NamedTuple):
    """What a compiled simulation depends on besides its arrays."""

    normalisation: str
    optimizer: str
    lag_pattern: str
    ratio: str
    stale_force: str
    group_size: int | None
    prompts_per_step: int
    history: int
    n_updates: int
    record: tuple[str, ...]


class _State(NamedTuple):
    """What moves: logits, the optimizer's moments, and the policies that still sample."""

    logits: Array
    moment: Array
    square: Array
    sampler: Array


class _Batch(NamedTuple):
    """Rollouts of one update, as shares of all rollouts and as sums of advantages by arm.

    ``good`` and ``bad`` are the rewarded and the other rollouts, shape (arms,) each.
    """

    share_good: Array
    share_bad: Array
    push_good: Array
    push_bad: Array
    reward: Array
    reward_std: Array
    zero_std_fraction: Array


def _scale(variance: Array, normalisation: str) -> Array:
    """Factor of a centred reward: one over the standard deviation where there is one."""
    if normalisation == "mean":
        return jnp.ones_like(variance)
    positive = variance > 0
    return jnp.where(positive, 1 / jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def _exact_batch(kind: _Kind, success: Array, sampler: Array) -> _Batch:
    policy = jax.nn.softmax(sampler)
    good, bad = policy * success, policy * (1 - success)
    p, q = good.sum(), bad.sum()
    variance = p * q
    scale = _scale(variance, kind.normalisation)
    none = jnp.where(variance > 0, 0.0, 1.0)
    return _Batch(good, bad, good * q * scale, -bad * p * scale, p, jnp.sqrt(variance), none)


def _sampled_batch(kind: _Kind, success: Array, sampler: Array, key: Array) -> _Batch:
    assert kind.group_size is not None
    policy = jax.nn.softmax(sampler)
    arms = len(success)
    # One random word a rollout decides arm and reward: it falls into one of 2 A intervals.
    chances = jnp.concatenate([policy * success, policy * (1 - success)])
    # Compared as whole numbers of 31 bits: fast, and a chance of 1 still has an edge of its own.
    edges = jnp.round(jnp.cumsum(chances)[:-1] * 2.0**31).astype(jnp.uint32)
    bits = jax.random.bits(key, (kind.prompts_per_step, kind.group_size), jnp.uint32) >> 1
    below = [(bits < edges[k]).sum(axis=1, dtype=jnp.int32) for k in range(2 * arms - 1)]
    counts = jnp.stack([*below, jnp.full_like(below[0], kind.group_size)], axis=1)
    cumulative = counts.astype(policy.dtype)
    first = cumulative[:, :1]
    shares = jnp.concatenate([first, jnp.diff(cumulative, axis=1)], axis=1) / kind.group_size
    good, bad = shares[:, :arms], shares[:, arms:]  # (prompts, arms)
    p = cumulative[:, arms - 1] / kind.group_size
    variance = p * (1 - p)
    scale = _scale(variance, kind.normalisation)
    mean = lambda values: values.mean(axis=0)  # noqa: E731
    return _Batch(
        mean(good),
        mean(bad),
        mean(good * ((1 - p) * scale)[:, None]),
        mean(-bad * (p * scale)[:, None]),
        mean(p),
        mean(jnp.sqrt(variance)),
        mean(jnp.where(variance > 0, 0.0, 1.0)),
    )


def _kl_and_gradient(log_policy: Array, log_reference: Array) -> tuple[Array, Array]:
    policy = jnp.exp(log_policy)
    gap = log_policy - log_reference
    divergence = (policy * gap).sum()
    return divergence, policy * (gap - divergence)


def _update(
    kind: _Kind, numbers: dict[str, Array], key: Array, state: _State, time: Array
) -> tuple[_State, tuple[Array, ...]]:
    """One optimizer update, and the record of it."""
    if kind.lag_pattern == "hold":
        fresh = time % numbers["refresh_interval"] == 0
        held = jnp.where(fresh, state.logits, state.sampler)
        old = held
    else:
        # A ring of the last policies; before the start they are all the initial one.
        held = state.sampler.at[time % kind.history].set(state.logits)
        old = held[(time - numbers["lag"]) % kind.history]
    success = numbers["success"]
    if kind.group_size is None:
        batch = _exact_batch(kind, success, old)
    else:
        batch = _sampled_batch(kind, success, old, jax.random.fold_in(key, time))

    log_policy = jax.nn.log_softmax(state.logits)
    log_old = jax.nn.log_softmax(old)
    log_reference = jax.nn.log_softmax(numbers["reference"])
    policy = jnp.exp(log_policy)
    log_ratio = jnp.minimum(log_policy - log_old, LARGEST_LOG_RATIO)
    ratio = jnp.ones_like(policy) if kind.ratio == "none" else jnp.exp(log_ratio)
    keep_good = keep_bad = jnp.ones_like(policy)
    if kind.ratio == "clipped":
        keep_good = jnp.where(ratio <= 1 + numbers["clip"], 1.0, 0.0)
        keep_bad = jnp.where(ratio >= 1 - numbers["clip"], 1.0, 0.0)
    push = ratio * (batch.push_good * keep_good + batch.push_bad * keep_bad)
    divergence, kl_gradient = _kl_and_gradient(log_policy, log_reference)
    if kind.stale_force == "all":
        _, kl_gradient = _kl_and_gradient(log_old, log_reference)
    force = push - policy * push.sum() - numbers["kl_weight"] * kl_gradient

    momentum, rate, square = numbers["momentum"], numbers["learning_rate"], state.square
    if kind.optimizer == "sgd":
        moment = momentum * state.moment + force
        step = rate * moment
    else:
        beta2, count = numbers["beta2"], time + 1.0
        moment = momentum * state.moment + (1 - momentum) * force
        square = beta2 * state.square + (1 - beta2) * force**2
        root = jnp.sqrt(square / (1 - beta2**count)) + ADAM_EPSILON
        step = rate * (moment / (1 - momentum**count)) / root
    columns = {
        "reward": batch.reward,
        "reward_std": batch.reward_std,
        "zero_std_fraction": batch.zero_std_fraction,
        "kl": divergence,
        "entropy": -(policy * log_policy).sum(),
        "clip_fraction": (
            batch.share_good * (1 - keep_good) + batch.share_bad * (1 - keep_bad)
        ).sum(),
        "eval_reward": (policy * success).sum(),
    }
    moved = _State(state.logits + step, moment, square, held)
    return moved, tuple(columns[name] for name in kind.record)


def _simulate_one(
    kind: _Kind, numbers: dict[str, Array], key: Array
) -> tuple[tuple[Array, ...], Array]:
    logits = numbers["initial"]
    rest = jnp.zeros_like(logits)
    hold = kind.lag_pattern == "hold"
    sampler = logits if hold else jnp.broadcast_to(logits, (kind.history, len(logits)))
    begin = _State(logits, rest, rest, sampler)
    end, record = lax.scan(
        lambda state, time: _update(kind, numbers, key, state, time),
        begin,
        jnp.arange(kind.n_updates),
    )
    return record, end.logits


@partial(jax.jit, static_argnums=0)
def _simulate_batch(
    kind: _Kind, numbers: dict[str, Array], seeds: Array, places: Array
) -> tuple[tuple[Array, ...], Array]:
    keys = jax.vmap(lambda s, place: jax.random.fold_in(jax.random.key(s), place))(seeds, places)
    run = partial(_simulate_one, kind)
    return jax.vmap(run, out_axes=((1,) * len(kind.record), 0))(numbers, keys)


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
    kind = _Kind(
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
        columns, logits = _simulate_batch(kind, numbers, seeds, places)
    return Curves(
        {
            name: np.asarray(values).T.reshape((*shape, n_updates))
            for name, values in zip(record, columns, strict=True)
        },
        np.asarray(logits).reshape((*shape, bandit.arms)),
    )
