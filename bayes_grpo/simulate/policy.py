"""A small neural policy trained with GRPO, as a table and as a log.

The pieces are `bayes_grpo.simulate.task` (prompts and verifier), ``network`` (policy and pretrained
reference), ``grpo`` (the update), ``training`` (whole grids of runs) and ``curvature`` (stiffness
measured from the exact drift). This module puts one run of them into a table and a log.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.settings import Settings
from bayes_grpo.simulate.log import write_log

if TYPE_CHECKING:
    from bayes_grpo.simulate.design import Design
    from bayes_grpo.simulate.network import Reference
    from bayes_grpo.simulate.task import Task


@dataclass(frozen=True)
class PolicyRun:
    """One training run of the small policy.

    Parameters
    ----------
    updates
        Optimizer updates.
    updates_per_row
        Updates that a logged row is the mean of.
    learning_rate, momentum, kl_weight
        eta, mu (Adam's beta1), beta.
    group_size, prompts_per_step
        Rollouts of a prompt, prompts of an update.
    refresh_interval, lag
        Updates between two refreshes of the sampler, or by which it is always behind; one of them.
    normalisation
        Advantages over the group's standard deviation (``"std"``), or only centred (``"mean"``).
    ratio, clip
        Importance ratios, and the half width of the clipping range.
    stale_force
        What is evaluated at the sampler: ``"all"`` or ``"reward"``; see
        `bayes_grpo.simulate.grpo.Loss`.
    optimizer, momentum_convention
        ``"sgd"`` or ``"adam"``; weight of a gradient in SGD's momentum.
    reuse
        Use the same rollouts in all updates between two refreshes.
    modulus, unsolvable, accuracy
        The task ``a op b (mod modulus)``, the fraction of prompts that no answer solves, and the
        mean accuracy of the reference.
    task_seed, seed
        Of task and reference, and of the rollouts.
    """

    updates: int = 400
    updates_per_row: int = 1
    learning_rate: float = 0.6
    momentum: float = 0.9
    kl_weight: float = 0.8
    group_size: int = 8
    prompts_per_step: int = 32
    refresh_interval: int = 1
    lag: int = 0
    normalisation: Literal["std", "mean"] = "std"
    ratio: Literal["none", "unclipped", "clipped"] = "clipped"
    clip: float = 0.2
    stale_force: Literal["reward", "all"] = "reward"
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum_convention: Literal["ema", "heavy_ball"] = "ema"
    reuse: bool = False
    modulus: int = 11
    unsolvable: float = 0.1
    accuracy: float = 0.35
    task_seed: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.updates_per_row < 1 or self.updates < 2 * self.updates_per_row:
            raise InputError(
                f"updates is {self.updates} and updates_per_row {self.updates_per_row}: expected "
                "at least two rows of at least one update"
            )
        if self.lag > 0 and self.refresh_interval > 1:
            raise InputError(
                f"lag is {self.lag} and refresh_interval {self.refresh_interval}: expected one of "
                "them, the sampler is constantly behind or held and refreshed"
            )

    def settings(self) -> dict[str, Any]:
        """Return the run's settings by the names of `bayes_grpo.Settings`."""
        ema = self.optimizer == "adam" or self.momentum_convention == "ema"
        return {
            "group_size": self.group_size,
            "prompts_per_step": self.prompts_per_step,
            "momentum": self.momentum,
            "momentum_convention": "ema" if ema else "heavy_ball",
            "learning_rate": self.learning_rate,
            "refresh_interval": self.refresh_interval,
            "lag_pattern": "constant" if self.lag else "hold",
            "lag": self.lag,
            "row_average": "window",
            "max_steps": self.updates // self.updates_per_row * self.updates_per_row,
            "reward_bounds": (0.0, 1.0),
            "kl_weight": self.kl_weight,
        }


def simulate_policy(run: PolicyRun) -> pd.DataFrame:
    """Train one small policy.

    Parameters
    ----------
    run
        What and how.

    Returns
    -------
    pandas.DataFrame
        One row for every ``updates_per_row`` updates: ``step`` (updates done), the columns of
        `bayes_grpo.simulate.training.History` and ``learning_rate``. ``expected_reward`` is the
        exact mean reward of the policy over the training prompts, which no trainer knows.

    Raises
    ------
    InputError
        If a number is out of range.
    """
    from bayes_grpo.simulate.design import Hyper
    from bayes_grpo.simulate.training import train_many

    design = _design(run)
    task, reference = task_and_reference(run)
    hyper = Hyper(
        run.learning_rate, run.momentum, run.kl_weight, run.refresh_interval, run.lag, run.seed
    )
    history, _ = train_many(design, task, reference, hyper)
    rows = design.rows
    table = pd.DataFrame({name: np.asarray(x[0], float) for name, x in history._asdict().items()})
    table.insert(0, "step", np.arange(1, rows + 1) * run.updates_per_row)
    return table.assign(learning_rate=run.learning_rate, generations=run.updates_per_row)


def task_and_reference(run: PolicyRun) -> tuple["Task", "Reference"]:
    """Make the task and the pretrained reference of a run.

    Parameters
    ----------
    run
        Gives modulus, unsolvable fraction, accuracy and ``task_seed``.

    Returns
    -------
    task : bayes_grpo.simulate.task.Task
    reference : bayes_grpo.simulate.network.Reference
    """
    from bayes_grpo.simulate.network import pretrain
    from bayes_grpo.simulate.task import arithmetic_task

    task = arithmetic_task(run.task_seed, modulus=run.modulus, unsolvable=run.unsolvable)
    return task, pretrain(task, run.task_seed, accuracy=run.accuracy)


def _design(run: PolicyRun) -> "Design":
    from bayes_grpo.simulate.design import Design
    from bayes_grpo.simulate.grpo import Loss

    return Design(
        group_size=run.group_size,
        prompts_per_step=run.prompts_per_step,
        rows=run.updates // run.updates_per_row,
        updates_per_row=run.updates_per_row,
        loss=Loss(
            normalisation=run.normalisation,
            ratio=run.ratio,
            stale_force=run.stale_force,
            clip=run.clip,
        ),
        optimizer=run.optimizer,
        momentum_convention=run.momentum_convention,
        lag_pattern="constant" if run.lag else "hold",
        longest_lag=run.lag,
        reuse=run.reuse,
    )


# What trainers call a column; the others go by their own names.
_LOGGED = {"zero_std_fraction": "frac_reward_zero_std"}


def write_policy_log(run: PolicyRun, path: str | os.PathLike[str]) -> pd.DataFrame:
    """Train one small policy and write its log, which `bayes_grpo.read_run` reads.

    Parameters
    ----------
    run
        What and how.
    path
        File to write, JSON lines.

    Returns
    -------
    pandas.DataFrame
        From `simulate_policy`.

    Raises
    ------
    InputError
        If a number is out of range.
    """
    Settings(run.settings())  # before anything is trained
    table = simulate_policy(run)
    write_log(table.rename(columns=_LOGGED), path, run.settings())
    return table
