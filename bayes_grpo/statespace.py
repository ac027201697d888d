"""Linear-Gaussian state space of one training run: likelihood, smoother, simulation.

The hidden state ``x`` (reward, velocity, plateau, ...) moves once per *tick*, the time between two
rollout batches, and a logged row observes the mean of the rewards of the ticks that it stands for:

    x[t+1] = A_t x[t] + sum_j b_tj w_tj,      w ~ N(0, 1)
    y[row] = mean over the row's ticks of h_t x[t] + N(0, r_row)

``A_t``, ``h_t`` and ``b_tj`` are never built as matrices.  A `System` gives them as linear
functions of a tuple of scalars, so the compiler sees only the handful of multiplications that a
mean curve needs, and the same code serves two states or twenty.  The marginal likelihood is the
Kalman filter's prediction-error decomposition (Harvey 1989, ch. 3); the smoother is its derivative
(de Jong 1989): the gradient of the log likelihood with respect to the predicted state is the
vector that turns the prediction into the smoothed state, so it needs no recursion of its own.

Ticks before a run starts are padding: with a learning rate of 0 and no time a system must leave
its start distribution as it is.  This lets runs of different lengths share one compiled program.

Everything here is a pure function of arrays, meant for float64 (see `bayes_grpo.precision`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

type Numbers = Array | np.ndarray
type Scalar = Array | np.ndarray | float
type State = tuple[Scalar, ...]
type Params = Mapping[str, Any]

_LOG_2PI = 1.8378770664093453


class Ticks(NamedTuple):
    """The clock and the data of one run, one entry per tick; all arrays have shape (ticks,).

    Parameters
    ----------
    learning_rate
        Learning rate of the tick relative to its reference (the run's peak), dimensionless.
    root_time
        Square root of the tick's share of the run's planned length; 0 in padding.
    reward
        Logged reward of the row that ends with this tick; any finite number where there is none.
    observed
        1 where a row with a reward ends, else 0.
    share
        Weight of this tick's reward in its row, 1 / (ticks of the row); 1 for rows of one tick.
    keep
        0 where a row starts, else 1: whether the running mean of the row is carried on.
    row_variance
        Sampling variance of the row relative to a row of one generation, 1 / generations.
    elapsed
        Learning rate accumulated before the tick, in ticks at the reference rate; 0 in padding.
    response
        Further per-tick numbers that a trajectory asks for (see `bayes_grpo.trajectory`).
    """

    learning_rate: Numbers
    root_time: Numbers
    reward: Numbers
    observed: Numbers
    share: Numbers
    keep: Numbers
    row_variance: Numbers
    elapsed: Numbers
    response: Mapping[str, Numbers] = {}


class System(NamedTuple):
    """A linear-Gaussian model of a run, written as functions of (parameters, tick, state).

    Parameters
    ----------
    start
        ``start(params) -> (mean, loadings)``: mean of the state before the first tick, and the
        vectors ``b_j`` whose products ``b_j b_j'`` add up to its covariance; see `independent`.
    advance
        ``advance(params, tick, x) -> x``: the state after the tick's updates; linear in ``x``.
    observe
        ``observe(params, tick, x) -> reward`` of the policy that sampled the tick; linear in ``x``.
    noise
        ``noise(params, tick) -> loadings``: vectors ``b_j`` of the noise that enters in the tick.
    sampling_variance
        ``sampling_variance(params, tick)`` of the row that ends with the tick, in reward squared.
    """

    start: Callable[[Params], tuple[State, tuple[State, ...]]]
    advance: Callable[[Params, Ticks, Sequence[Scalar]], State]
    observe: Callable[[Params, Ticks, Sequence[Scalar]], Scalar]
    noise: Callable[[Params, Ticks], Sequence[State]]
    sampling_variance: Callable[[Params, Ticks], Scalar]


def independent(deviations: State) -> tuple[State, ...]:
    """Loadings of a start whose entries are independent, from their standard deviations."""
    return tuple(
        tuple(deviation if i == j else 0.0 for j in range(len(deviations)))
        for i, deviation in enumerate(deviations)
        if not _is_zero(deviation)
    )


class Filtered(NamedTuple):
    """One-step-ahead predictions of a run.

    Parameters
    ----------
    mean, variance
        Moments of each row's reward given all earlier rows, shape (ticks,); meaningful only where
        a row ends.
    log_density
        Log density of each row given all earlier rows, shape (ticks,); 0 where no row ends.
    state_mean, state_covariance
        Moments of the state after the last tick given all rows, shapes (size,) and (size, size).
    """

    mean: Array
    variance: Array
    log_density: Array
    state_mean: Array
    state_covariance: Array


type _Moments = tuple[tuple[Scalar, ...], tuple[Scalar, ...]]
"""Mean, and the upper triangle of the covariance, row by row."""


def _is_zero(value: Scalar) -> bool:
    return isinstance(value, int | float) and value == 0


def _plus(a: Scalar, b: Scalar) -> Scalar:
    return b if _is_zero(a) else a if _is_zero(b) else a + b


def _times(a: Scalar, b: Scalar) -> Scalar:
    return 0.0 if _is_zero(a) or _is_zero(b) else a * b


def _full(upper: Sequence[Scalar], size: int) -> list[list[Scalar]]:
    matrix: list[list[Scalar]] = [[0.0] * size for _ in range(size)]
    entries = iter(upper)
    for i in range(size):
        for j in range(i, size):
            matrix[i][j] = matrix[j][i] = next(entries)
    return matrix


def _upper(matrix: Sequence[Sequence[Scalar]]) -> tuple[Scalar, ...]:
    return tuple(matrix[i][j] for i in range(len(matrix)) for j in range(i, len(matrix)))


def _congruence(
    linear: Callable[[Sequence[Scalar]], Sequence[Scalar]], matrix: list[list[Scalar]]
) -> list[list[Scalar]]:
    """Return ``A M A'`` where ``linear(x)`` is ``A x``."""
    columns = [linear(row) for row in matrix]  # the matrix is symmetric: its rows are its columns
    size = len(columns[0])
    return [list(linear([column[i] for column in columns])) for i in range(size)]


def _start(system: System, params: Params, windowed: bool) -> _Moments:
    mean, loadings = system.start(params)
    if windowed:
        mean, loadings = (*mean, 0.0), tuple((*loading, 0.0) for loading in loadings)
    covariance: list[list[Scalar]] = [[0.0] * len(mean) for _ in mean]
    for loading in loadings:
        _add_outer(covariance, loading)
    as_float = lambda values: tuple(jnp.asarray(v, dtype=jnp.result_type(float)) for v in values)  # noqa: E731
    return as_float(mean), as_float(_upper(covariance))


def _add_outer(covariance: list[list[Scalar]], loading: State) -> None:
    """Add ``b b'`` to a covariance."""
    for i, b in enumerate(loading):
        for j, c in enumerate(loading):
            covariance[i][j] = _plus(covariance[i][j], _times(b, c))


def _filter_tick(
    system: System, params: Params, tick: Ticks, moments: _Moments, windowed: bool
) -> tuple[_Moments, tuple[Scalar, Scalar]]:
    """Predict the row that ends with this tick, learn from it, move on by one tick."""
    mean, upper = moments
    covariance = _full(upper, len(mean))

    if windowed:

        def gather(x: Sequence[Scalar]) -> tuple[Scalar, ...]:
            running = tick.keep * x[-1] + tick.share * system.observe(params, tick, x[:-1])
            return (*x[:-1], running)

        mean = gather(mean)
        covariance = _congruence(gather, covariance)

    def row_of(x: Sequence[Scalar]) -> Scalar:
        return x[-1] if windowed else system.observe(params, tick, x)

    with_row = [row_of(line) for line in covariance]
    variance = row_of(with_row) + system.sampling_variance(params, tick)
    predicted = row_of(mean)
    gain_scale = tick.observed / variance
    surprise = gain_scale * (tick.reward - predicted)

    def advance(x: Sequence[Scalar]) -> tuple[Scalar, ...]:
        if windowed:
            return (*system.advance(params, tick, x[:-1]), x[-1])
        return system.advance(params, tick, x)

    # A (P - p p' / F) A' as A P A' - q q' / F with q = A p, so that moving on does not wait for the
    # division.
    moved_row = advance(with_row)
    mean = tuple(m + q * surprise for m, q in zip(advance(mean), moved_row, strict=True))
    covariance = _congruence(advance, covariance)
    for loading in system.noise(params, tick):
        _add_outer(covariance, loading)
    gain = [gain_scale * q for q in moved_row]
    covariance = [
        [covariance[i][j] - gain[min(i, j)] * moved_row[max(i, j)] for j in range(len(mean))]
        for i in range(len(mean))
    ]
    return (mean, _upper(covariance)), (predicted, variance)


def _log_density(tick: Ticks, predicted: Scalar, variance: Scalar) -> Scalar:
    residual = tick.reward - predicted
    return -0.5 * tick.observed * (_LOG_2PI + jnp.log(variance) + residual * residual / variance)


def log_likelihood(
    system: System,
    params: Params,
    ticks: Ticks,
    *,
    windowed: bool,
    nudges: tuple[Array, ...] | None = None,
) -> Array:
    """Log density of all logged rewards, the states integrated out exactly.

    Parameters
    ----------
    system, params, ticks
        The model, its parameters (scalars) and the run.
    windowed
        Whether any row averages several ticks (costs one more state).
    nudges
        One array of shape (ticks,) per state, added to the predicted state of each tick.  Only
        their gradient is of use: see `smooth`.

    Returns
    -------
    Array
        A scalar.

    Notes
    -----
    The scan keeps only its carry and recomputes the tick when it is differentiated: on a CPU this
    is as fast as a hand-written adjoint, and every derivative stays available.
    """

    def step(carry: Any, tick_and_nudge: Any) -> tuple[Any, None]:
        tick, nudge = tick_and_nudge
        moments, total = carry
        if nudge is not None:
            mean = tuple(m + n for m, n in zip(moments[0], nudge, strict=False))
            moments = ((*mean, *moments[0][len(mean) :]), moments[1])
        moments, prediction = _filter_tick(system, params, tick, moments, windowed)
        return (moments, total + _log_density(tick, *prediction)), None

    zero = jnp.zeros((), dtype=jnp.result_type(float))
    carry = (_start(system, params, windowed), zero)
    step = jax.checkpoint(step, prevent_cse=False)
    return lax.scan(step, carry, (ticks, nudges))[0][1]


def filter_run(system: System, params: Params, ticks: Ticks, *, windowed: bool) -> Filtered:
    """One-step-ahead predictions of every row and the state after the last tick.

    Parameters
    ----------
    system, params, ticks, windowed
        As for `log_likelihood`.

    Returns
    -------
    Filtered
    """

    def step(moments: _Moments, tick: Ticks) -> tuple[_Moments, tuple[Any, ...]]:
        moments, (predicted, variance) = _filter_tick(system, params, tick, moments, windowed)
        return moments, (predicted, variance, _log_density(tick, predicted, variance))

    rows: tuple[Array, Array, Array]
    (mean, upper), rows = lax.scan(step, _start(system, params, windowed), ticks)
    size = len(mean) - windowed
    covariance = jnp.stack([jnp.stack(row[:size]) for row in _full(upper, len(mean))[:size]])
    return Filtered(rows[0], rows[1], rows[2], jnp.stack(mean[:size]), covariance)


def smooth(system: System, params: Params, ticks: Ticks, *, windowed: bool) -> Array:
    """Mean of the state before every tick, given all rows.

    With ``g_t`` the gradient of the log likelihood in the predicted state of tick ``t``, the
    smoothed noise of the tick before is ``Q g_t`` (the disturbance smoother of de Jong 1989 and
    Koopman 1993), so the path is one forward pass of the recursion.

    Parameters
    ----------
    system, params, ticks, windowed
        As for `log_likelihood`.

    Returns
    -------
    Array
        Shape (ticks, size).
    """
    return _smooth_to_end(system, params, ticks, windowed)[0]


def _smooth_to_end(
    system: System, params: Params, ticks: Ticks, windowed: bool
) -> tuple[Array, Array]:
    """Smoothed state before every tick, and after the last one."""
    mean, loadings = system.start(params)
    zero = jnp.zeros_like(ticks.reward)
    gradients = jax.grad(
        lambda nudges: log_likelihood(system, params, ticks, windowed=windowed, nudges=nudges)
    )(tuple(zero for _ in mean))

    def step(x: State, at: Any) -> tuple[State, State]:
        tick, ahead = at
        return _shifted(system.advance(params, tick, x), system.noise(params, tick), ahead), x

    dtype = jnp.result_type(float)
    mean = tuple(jnp.asarray(m, dtype) for m in mean)
    first = _shifted(mean, loadings, tuple(g[0] for g in gradients))
    ahead = tuple(jnp.concatenate([g[1:], jnp.zeros_like(g[:1])]) for g in gradients)
    end, states = lax.scan(step, first, (ticks, ahead))
    return jnp.stack(states, axis=-1), jnp.stack(end)


def _shifted(x: State, loadings: Sequence[State], gradient: State) -> State:
    """Return ``x + Q g`` where the loadings make up ``Q``."""
    for loading in loadings:
        push = sum(_times(b, g) for b, g in zip(loading, gradient, strict=True))
        x = _moved(x, loading, push)
    return x


def _moved(x: State, loading: State, push: Scalar) -> State:
    return tuple(_plus(m, _times(b, push)) for m, b in zip(x, loading, strict=True))


def row_means(system: System, params: Params, ticks: Ticks, states: Array) -> Array:
    """Reward without sampling noise of the row that each tick ends or continues.

    Parameters
    ----------
    system, params, ticks
        As for `log_likelihood`.
    states
        State before every tick, shape (ticks, size).

    Returns
    -------
    Array
        Running mean of the row, shape (ticks,); the row's own value where it ends.
    """
    state = tuple(states[:, i] for i in range(states.shape[1]))
    rewards = jax.vmap(lambda tick, x: system.observe(params, tick, x))(ticks, state)

    def step(running: Array, at: Any) -> tuple[Array, Array]:
        keep, part = at
        running = keep * running + part
        return running, running

    zero = jnp.zeros((), states.dtype)
    return lax.scan(step, zero, (ticks.keep, ticks.share * rewards))[1]


class Noise(NamedTuple):
    """Independent standard normal numbers that one simulated run is made of.

    Parameters
    ----------
    start
        For the loadings of the start, shape (loadings,).
    shocks
        For the noise loadings of every tick, shape (ticks, loadings).
    rows
        For the sampling noise of every row, shape (ticks,).
    """

    start: Numbers
    shocks: Numbers
    rows: Numbers


def noise_shapes(
    system: System, params: Params, ticks: Ticks
) -> tuple[tuple[int], tuple[int, int], tuple[int]]:
    """Shapes of the arrays of `Noise` that a run of these ticks needs."""
    count = len(ticks.reward)
    loadings = len(system.noise(params, jax.tree.map(lambda a: a[0], ticks)))
    return (len(system.start(params)[1]),), (count, loadings), (count,)


def draw_noise(system: System, params: Params, ticks: Ticks, key: Array) -> Noise:
    """Draw the `Noise` of one run.

    Parameters
    ----------
    system, params, ticks
        As for `log_likelihood`.
    key
        JAX random key.

    Returns
    -------
    Noise
    """
    shapes = noise_shapes(system, params, ticks)
    keys = jax.random.split(key, len(shapes))
    draw = lambda key, shape: jax.random.normal(key, shape, jnp.result_type(float))  # noqa: E731
    return Noise(*(draw(key, shape) for key, shape in zip(keys, shapes, strict=True)))


def simulate(
    system: System, params: Params, ticks: Ticks, noise: Noise, start: Array | None = None
) -> tuple[Array, Array, Array]:
    """One run of the model; without noise, its mean curve.

    Parameters
    ----------
    system, params, ticks
        As for `log_likelihood`; ``ticks.reward`` and ``ticks.observed`` are not read.
    noise
        Standard normal numbers, from `draw_noise`.
    start
        State before the first tick, shape (size,); None: made from the start distribution and
        ``noise.start``.

    Returns
    -------
    states : Array
        State before every tick, shape (ticks, size).
    rewards : Array
        Rewards with sampling noise of the row that each tick ends or continues, shape (ticks,).
    end : Array
        State after the last tick, shape (size,).
    """
    dtype = jnp.result_type(float)
    if start is None:
        first, loadings = system.start(params)
        first = tuple(jnp.asarray(value, dtype) for value in first)
        for number, loading in enumerate(loadings):
            first = _moved(first, loading, noise.start[number])
        start = jnp.stack(first)

    def step(x: State, at: Any) -> tuple[State, State]:
        tick, shock = at
        moved = system.advance(params, tick, x)
        for number, loading in enumerate(system.noise(params, tick)):
            moved = _moved(moved, loading, shock[number])
        return moved, x

    begin: State = tuple(start)
    end, states = lax.scan(step, begin, (ticks, noise.shocks))
    path = jnp.stack(states, axis=-1)
    variance = jax.vmap(lambda tick: jnp.asarray(system.sampling_variance(params, tick), dtype))(
        ticks
    )
    rewards = row_means(system, params, ticks, path) + jnp.sqrt(variance) * noise.rows
    return path, rewards, jnp.stack(end)


def draw_states(
    system: System, params: Params, ticks: Ticks, noise: Noise, *, windowed: bool
) -> tuple[Array, Array]:
    """Draw the path of the state given all rows (simulation smoother of Durbin & Koopman 2002).

    A run drawn from the model is corrected by the smoothed difference between the real and the
    drawn rewards; by linearity the result is an exact draw.

    Parameters
    ----------
    system, params, ticks, windowed
        As for `log_likelihood`.
    noise
        Standard normal numbers, from `draw_noise`.

    Returns
    -------
    states : Array
        State before every tick, shape (ticks, size).
    end : Array
        State after the last tick, shape (size,).
    """
    states, rewards, end = simulate(system, params, ticks, noise)
    centred = system._replace(
        start=lambda p: (tuple(0.0 for _ in system.start(p)[0]), system.start(p)[1])
    )
    difference = ticks._replace(reward=ticks.reward - rewards)
    correction, last = _smooth_to_end(centred, params, difference, windowed)
    return states + correction, end + last
