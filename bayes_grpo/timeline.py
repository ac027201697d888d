"""From the rows of a run to ticks: when rollouts were made, and what a logged row saw of them.

Time is counted in optimizer updates; a tick is one rollout batch, ``refresh_interval`` updates.
A row of ``row_average = "window"`` is the mean of the batches since the row before; one of
``"single"`` is the batch that the last update before it used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bayes_grpo.errors import InputError
from bayes_grpo.priors import RunScale
from bayes_grpo.run import Run
from bayes_grpo.schedule import Schedule, constant_schedule, read_schedule
from bayes_grpo.statespace import Numbers, Ticks

MAX_TICKS = 50_000
"""More ticks than rows need, beyond this many, are merged: see `build_timeline`."""

MAX_AHEAD = 200_000
"""Rollout batches beyond the end of a log that a forecast may reach."""

type Responses = Callable[[np.ndarray], Mapping[str, Numbers]]


@dataclass(frozen=True)
class Timeline:
    """The clock of one run.

    Parameters
    ----------
    ticks
        Per-tick arrays without padding, shape (ticks,).
    windowed
        Whether any row averages several ticks.
    rows
        Rows of the run's table that carry a reward, as positions, shape (rows,).
    row_tick
        Tick at which each of them ends, shape (rows,).
    row_updates
        Updates done when each of them was logged, shape (rows,).
    updates_per_tick
        Optimizer updates of one tick.
    scale
        What the priors are measured in.
    planned_step
        Planned last step.
    schedule
        Learning rate relative to its peak.
    notes
        Assumptions made on the way.
    """

    ticks: Ticks
    windowed: bool
    rows: np.ndarray
    row_tick: np.ndarray
    row_updates: np.ndarray
    updates_per_tick: int
    scale: RunScale
    planned_step: float
    schedule: Schedule
    notes: tuple[str, ...]


def build_timeline(
    run: Run,
    responses: Responses,
    *,
    one_update_ticks: bool = False,
    horizon: int | None = None,
) -> Timeline:
    """Lay a run out on ticks.

    Parameters
    ----------
    run
        A checked run.
    responses
        Per-tick responses from the learning rates of its updates, shape (ticks, updates per tick).
    one_update_ticks
        Whether the trajectory needs a tick per update.
    horizon
        Planned last step; None: the run's ``max_steps``, else twice the last logged step.

    Returns
    -------
    Timeline

    Raises
    ------
    InputError
        If the horizon lies before the end of the log or absurdly far beyond it, or a trajectory
        that needs a tick per update would need absurdly many.
    """
    table, settings = run.table, run.settings
    notes: list[str] = []
    done = np.cumsum(table["updates"].to_numpy(dtype=np.int64))
    step = table["step"].to_numpy(dtype=float)
    planned = _planned_step(run, horizon, float(step[-1]), notes)
    # The log's own clock may start late: what is planned is counted from its first row.
    planned_updates = float(done[-1] + (planned - step[-1]) * settings.updates_per_step)

    length = 1 if one_update_ticks else settings.refresh_interval
    check_distance(run.name, (planned_updates - done[-1]) / length, planned)
    too_many = done[-1] > MAX_TICKS * length and done[-1] > 20 * len(done) * length
    # A lag is a number of updates: were they merged, it would be another lag.
    if too_many and one_update_ticks and done[-1] > 20 * MAX_TICKS:
        raise InputError(
            f"run '{run.name}': {done[-1]} updates with {len(done)} rows are too many for a "
            f"constant lag, at most {20 * MAX_TICKS}: set lag_pattern='hold', lag=0, or choose "
            "another model"
        )
    if too_many and not one_update_ticks:
        merged = int(-(-done[-1] // (MAX_TICKS * length)))
        notes.append(
            f"{done[-1]} updates with {len(done)} rows: {merged * length} updates are taken as one"
        )
        length *= merged
    count = int(-(-done[-1] // length))

    first, last = _row_ticks(
        table["updates"].to_numpy(dtype=np.int64), done, length, settings.row_average
    )
    reward = table["reward"].to_numpy(dtype=float, copy=True)  # a view of a frame is read-only
    generations = table["generations"].to_numpy(dtype=float)
    has_reward = np.isfinite(reward)
    spread = float(np.std(reward[has_reward]))
    # Rows closer than a tick are averaged below: they lie a tick apart.
    spacing = float(np.median(np.diff(done))) if len(done) > 1 else 0.0
    scale = RunScale(
        location=float(np.median(reward[has_reward])),
        scale=spread,
        planned_updates=planned_updates,
        row_updates=max(spacing, float(length)),
    )
    schedule = _schedule(run, done)
    notes.append(schedule.why)
    rates = schedule.at(1 + np.arange(count * length).reshape(count, length))

    ticks = _empty_ticks(rates, length, planned_updates, responses(rates), 0.0)
    rows: list[int] = []
    for row in np.flatnonzero(has_reward):
        a, b = first[row], last[row]
        weight = generations[row]
        if ticks.observed[b]:  # a row between two refreshes repeats a batch that was logged already
            rows[-1] = int(row)
            weight += 1 / ticks.row_variance[b]
            reward[row] = (
                ticks.reward[b] + (reward[row] - ticks.reward[b]) * generations[row] / weight
            )
        else:
            rows.append(int(row))
            ticks.share[a : b + 1] = 1 / (b - a + 1)
            ticks.keep[a] = 0.0
            ticks.keep[a + 1 : b + 1] = 1.0
        ticks.observed[b] = 1.0
        ticks.reward[b] = reward[row]
        ticks.row_variance[b] = 1 / weight
    if len(rows) < has_reward.sum():
        notes.append(
            f"{has_reward.sum() - len(rows)} rows share a rollout batch with another: averaged"
        )
    kept = np.array(rows)
    return Timeline(
        ticks=ticks,
        windowed=bool(np.any(ticks.keep > 0)),
        rows=kept,
        row_tick=last[kept],
        row_updates=done[kept],
        updates_per_tick=length,
        scale=scale,
        planned_step=planned,
        schedule=schedule,
        notes=tuple(notes),
    )


def future_ticks(
    timeline: Timeline,
    responses: Responses,
    updates: np.ndarray,
    row_updates: int,
    generations: float,
) -> tuple[Ticks, np.ndarray, np.ndarray]:
    """Ticks after the end of the log.

    Parameters
    ----------
    timeline
        The logged part.
    responses
        As for `build_timeline`.
    updates
        Updates done at the rows asked for, rising, beyond the last logged one, shape (steps,).
    row_updates
        Updates that such a row averages over (1: one rollout batch).
    generations
        Rollout batches that such a row averages.

    Returns
    -------
    ticks : Ticks
        From the tick after the last logged one; every tick is a row of its own.
    first, last : ndarray
        First and last tick of each row asked for, shape (steps,).
    """
    length = timeline.updates_per_tick
    begin = len(timeline.ticks.reward)
    last = np.maximum((updates - 1) // length - begin, 0).astype(int)
    first = np.clip(-(-(updates - row_updates) // length) - begin, 0, last).astype(int)
    count = int(last[-1]) + 1
    rates = timeline.schedule.at(
        1 + (begin * length + np.arange(count * length)).reshape(count, length)
    )
    logged = timeline.ticks
    elapsed = float(logged.elapsed[-1] + logged.learning_rate[-1])
    ticks = _empty_ticks(rates, length, timeline.scale.planned_updates, responses(rates), elapsed)
    ticks.row_variance[:] = 1 / generations
    return ticks, first, last


def pad_ticks(ticks: Ticks, count: int) -> Ticks:
    """Put padding before the run, so that it has ``count`` ticks; the state does not move there."""
    extra = count - len(ticks.reward)

    def front(values: Numbers, fill: float) -> np.ndarray:
        return np.concatenate([np.full(extra, fill), np.asarray(values)])

    # With no learning rate, every response to a force is 0; what is kept of a velocity that is
    # still 0 does not matter.
    return Ticks(
        learning_rate=front(ticks.learning_rate, 0.0),
        root_time=front(ticks.root_time, 0.0),
        reward=front(ticks.reward, 0.0),
        observed=front(ticks.observed, 0.0),
        share=front(ticks.share, 1.0),
        keep=front(ticks.keep, 0.0),
        row_variance=front(ticks.row_variance, 1.0),
        elapsed=front(ticks.elapsed, 0.0),
        response={name: front(values, 0.0) for name, values in ticks.response.items()},
    )


def bucket(count: int) -> int:
    """Smallest padded length for a number of ticks: 64, 96, 128, 192, 256, ..."""
    size = 64
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def check_distance(name: str, batches: float, step: float) -> None:
    """Refuse a forecast further ahead than memory and sense allow; raises `InputError`."""
    if batches > MAX_AHEAD:
        raise InputError(
            f"run '{name}': step {step:.0f} lies {batches:.0f} rollout batches "
            f"beyond the log, at most {MAX_AHEAD} can be forecast: give a nearer horizon"
        )


def _planned_step(run: Run, horizon: int | None, last: float, notes: list[str]) -> float:
    if horizon is not None:
        if horizon < last:
            raise InputError(
                f"run '{run.name}': horizon is {horizon}, but the log goes to step {last:g}: give "
                "the planned last step"
            )
        return float(horizon)
    if run.settings.max_steps is not None:
        return float(run.settings.max_steps)
    notes.append(f"planned length unknown: taken as twice the log, step {2 * last:g}")
    return 2 * last


def _schedule(run: Run, done: np.ndarray) -> Schedule:
    if "learning_rate" not in run.table.columns:
        return constant_schedule("no learning rate in the log: taken as constant")
    rates = run.table["learning_rate"].to_numpy(dtype=float)
    # A peak that was given by hand sets the unit of the curvature, not the shape of the schedule.
    return read_schedule(done, rates, float(np.nanmax(rates)))


def _row_ticks(
    updates: np.ndarray, done: np.ndarray, length: int, row_average: str
) -> tuple[np.ndarray, np.ndarray]:
    """First and last tick whose rollouts each row averages, shape (rows,) each."""
    last = (done - 1) // length
    if row_average == "single":
        return last.copy(), last
    return np.minimum(-(-(done - updates) // length), last), last


def _empty_ticks(
    rates: np.ndarray,
    length: int,
    planned_updates: float,
    response: Mapping[str, Numbers],
    elapsed: float,
) -> Ticks:
    count = len(rates)
    rate = rates.mean(axis=1)
    return Ticks(
        learning_rate=rate,
        root_time=np.full(count, np.sqrt(length / planned_updates)),
        reward=np.zeros(count),
        observed=np.zeros(count),
        share=np.ones(count),
        keep=np.zeros(count),
        row_variance=np.ones(count),
        elapsed=elapsed + np.cumsum(rate) - rate,
        response=response,
    )
