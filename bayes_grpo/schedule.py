"""The learning rate of every update: read off the log, and continued beyond its end."""

from dataclasses import dataclass

import numpy as np

LINEAR_TOLERANCE = 0.02
"""Largest deviation from a straight line, relative to the peak, that counts as linear decay."""


@dataclass(frozen=True)
class Schedule:
    """Learning rate relative to its peak as a function of the update.

    Parameters
    ----------
    updates
        Updates at which it is known, rising, shape (points,).
    relative
        Learning rate over its peak there, shape (points,).
    slope
        Change per update beyond the last point (0: held there); the rate stops at 0.
    why
        How the continuation was chosen, in words.
    """

    updates: np.ndarray
    relative: np.ndarray
    slope: float
    why: str

    def at(self, updates: np.ndarray) -> np.ndarray:
        """Relative learning rate at given updates (counted from 1), any shape."""
        inside = np.interp(updates, self.updates, self.relative)
        beyond = np.clip(np.asarray(updates) - self.updates[-1], 0, None)
        return np.clip(inside + self.slope * beyond, 0, None)


def constant_schedule(why: str) -> Schedule:
    """Schedule of a run whose learning rate never changes."""
    return Schedule(np.array([1.0]), np.array([1.0]), 0.0, why)


def read_schedule(updates: np.ndarray, learning_rate: np.ndarray, peak: float) -> Schedule:
    """Schedule of a run from the logged learning rates.

    Parameters
    ----------
    updates
        Updates done when each row was logged, shape (rows,).
    learning_rate
        Logged learning rate, NaN where missing, shape (rows,).
    peak
        Reference learning rate, > 0.

    Returns
    -------
    Schedule
        Continued as a straight line where the last third of the log falls on one, else held.
    """
    known = np.isfinite(learning_rate)
    if not known.any():
        return constant_schedule("no learning rate in the log: taken as constant")
    at, relative = updates[known].astype(float), learning_rate[known] / peak
    if np.ptp(relative) == 0:
        return Schedule(at, relative, 0.0, "the logged learning rate is constant and stays so")
    tail = slice(len(at) * 2 // 3, None)
    if len(at[tail]) >= 3 and relative[-1] < relative[tail][0]:
        slope, level = np.polyfit(at[tail], relative[tail], 1)
        off = np.abs(relative[tail] - (level + slope * at[tail])).max()
        if off < LINEAR_TOLERANCE * relative.max():
            end = at[-1] - relative[-1] / slope
            return Schedule(
                at,
                relative,
                float(slope),
                f"the learning rate falls linearly, to 0 at update {end:.0f}",
            )
    return Schedule(at, relative, 0.0, "the learning rate is held at its last logged value")
