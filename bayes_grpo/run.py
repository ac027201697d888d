"""One training run: the table of its logged steps, and its settings."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.settings import Setting, Settings
from bayes_grpo.table import (
    add_counts,
    check_ranges,
    check_reward_varies,
    drop_dead,
    merge_equal_steps,
    natural_bounds,
    number_steps,
    ordered,
    rename_known,
    require_reward,
    to_numbers,
)

__all__ = ["CautionWarning", "Run", "Setting", "Settings"]


class CautionWarning(UserWarning):
    """Something about a run makes conclusions from it unsafe; see `Run.cautions`."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One training run: a row for each logged step, and the settings it was trained with.

    Make one with `Run.from_table` or `bayes_grpo.read_run`, which check everything; the constructor
    takes a table that is checked already.

    Parameters
    ----------
    name
        Name shown in tables and plots.
    table
        The logged steps, copied. Columns as far as the log has them, float64 unless said
        otherwise: ``step`` (int64, strictly rising), ``reward`` (NaN where the row has none),
        ``reward_std``, ``zero_std_fraction`` (of prompts whose completions all have one reward),
        ``kl``, ``entropy``, ``completion_length`` (tokens), ``clip_fraction``, ``grad_norm``,
        ``learning_rate``, ``eval_reward``, other numeric columns under their own names, and always
        the two derived ones below.
    settings
        The settings.
    source
        Path of the log, or None.
    notes
        Every assumption made on the way here, in words.

    Notes
    -----
    ``updates`` (int64, at least 1) is how many optimizer updates lie between the row before and
    this one: the difference of their steps times ``updates_per_step``, whether or not the row
    before has a reward. Their running sum is the run's time. For the first row it is its step, but
    at most the typical spacing (a log that starts at step 3,000 stands for one row there, not for
    3,000 updates) and at least one step (a counter from 0 is read as one from 1).

    ``generations`` (int64) is how many rollout batches the row's reward is the mean of; 0 where the
    reward is missing. With ``row_average="single"`` it is 1, however far the rows lie apart. With
    ``row_average="window"`` the row is the mean of everything since the row before, which is
    ``max(1, updates // refresh_interval)`` batches. Rows of the log that share a step are averaged,
    and each counts.
    """

    name: str
    table: pd.DataFrame
    settings: Settings
    source: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.table.copy())

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        name: str = "run",
        *,
        source: str | None = None,
        read: Mapping[str, Setting] | None = None,
        notes: Sequence[str] = (),
        **settings: Any,
    ) -> "Run":
        """Check a table and make a run of it.

        Parameters
        ----------
        table
            A row for each logged step, or for each micro-batch of a step. It needs a column
            ``reward``; ``step`` should be there too, else the rows are numbered. Other quantities
            are found under the names that common trainers give them. Cells may be numbers written
            as text. ``updates`` and ``generations``, if there, win over the derived ones.
        name
            Name of the run.
        source
            Path of the log; named in errors.
        read
            Settings found in the log, for readers.
        notes
            Assumptions made so far, for readers.
        **settings
            Settings given by hand, such as ``group_size=8``; see `Settings`.

        Returns
        -------
        Run
            With everything that had to be assumed in its ``notes``.

        Raises
        ------
        InputError
            If the table or a setting cannot be used. The message is one line that names the row,
            what was found, what was expected, and the mend.
        """
        try:
            return _checked(table, name, source, dict(read or {}), tuple(notes), settings)
        except InputError as error:
            raise error.at(source or f"table '{name}'") from None

    def head(self, n_rows: int) -> "Run":
        """Return the run as it was after its first rows.

        Parameters
        ----------
        n_rows
            Rows to keep, at least 2; more than there are keeps all.

        Returns
        -------
        Run
            The prefix, with the same settings: the plan is known from the start.

        Raises
        ------
        InputError
            If the prefix has fewer than two rewards, or a constant one.
        """
        if n_rows < 1:
            raise InputError(f"run '{self.name}': head({n_rows}): expected at least 1 row")
        return self._prefix(self.table.head(n_rows))

    def until(self, step: int) -> "Run":
        """Return the run as it was at a step.

        Parameters
        ----------
        step
            Last step to keep.

        Returns
        -------
        Run
            The prefix, with the same settings: the plan is known from the start.

        Raises
        ------
        InputError
            If the prefix has fewer than two rewards, or a constant one.
        """
        return self._prefix(self.table[self.table["step"] <= step])

    def _prefix(self, table: pd.DataFrame) -> "Run":
        try:
            check_reward_varies(table["reward"].to_numpy())
        except InputError as error:
            raise error.at(f"run '{self.name}', its first {len(table)} rows") from None
        settings = self.settings
        if settings["reward_bounds"].provenance == "inferred":
            # What later rows gave away was not known at the time.
            items = {name: settings[name] for name in settings if name != "reward_bounds"}
            settings = Settings(read={**items, **_inferred_bounds(table)})
        return Run(self.name, table, settings, self.source, self.notes)

    @property
    def components(self) -> tuple[str, ...]:
        """Columns of the parts that the reward is the sum of, as far as they are logged."""
        names = [name for name in self.table.columns if name.startswith("rewards/")]
        return tuple(name for name in names if not name.endswith("/std"))

    @property
    def cautions(self) -> tuple[str, ...]:
        """What makes conclusions from this run unsafe, in words; every fit repeats it."""
        if not self.settings.reward_filtered:
            return ()
        why = self.settings["reward_filtered"].why
        return (
            f"the reward is the mean of a filtered batch ({why}): prompts without contrast are "
            "left out, which pulls it to the middle; its plateau says nothing about the policy",
        )

    def __len__(self) -> int:
        return len(self.table)

    def _headline(self) -> str:
        steps, rewards = self.table["step"], self.table["reward"].dropna()
        tenth = max(1, len(rewards) // 10)
        return (
            f"{len(self)} rows, steps {steps.iloc[0]} to {steps.iloc[-1]}, reward "
            f"{rewards.head(tenth).mean():.3g} to {rewards.tail(tenth).mean():.3g} "
            "(means of the first and last tenth)"
        )

    def __repr__(self) -> str:
        told = [f"{n}={s.value!r}" for n, s in self._told().items()]
        lines = [
            f"Run '{self.name}': {self._headline()}",
            f"  settings: {', '.join(told) or 'all default'}",
        ]
        cautions = [f"  caution: {caution}" for caution in self.cautions]
        return "\n".join([*lines, *cautions, *(f"  note: {note}" for note in self.notes)])

    def _told(self) -> dict[str, Setting]:
        items = ((name, self.settings[name]) for name in self.settings)
        return {name: item for name, item in items if item.provenance != "default"}

    def _repr_html_(self) -> str:
        said = (*(f"caution: {caution}" for caution in self.cautions), *self.notes)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in said)
        return (
            f"<p><b>Run {html.escape(self.name)}</b>: {self._headline()}</p>"
            f"{self.settings._repr_html_()}" + (f"<ul>{notes}</ul>" if notes else "")
        )


def _checked(
    table: pd.DataFrame,
    name: str,
    source: str | None,
    read: dict[str, Setting],
    notes: tuple[str, ...],
    given: Mapping[str, Any],
) -> Run:
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"found {type(table).__name__}, expected a pandas DataFrame")
    frame, renamed = rename_known(table)
    require_reward(frame)
    if frame.empty:
        raise InputError("the table has no rows: expected at least 2 with a reward")
    frame, left_out = to_numbers(frame)
    frame, dead = drop_dead(frame)
    frame, numbered = number_steps(frame)
    check_ranges(frame)
    frame, batches, merged = merge_equal_steps(frame)
    check_reward_varies(frame["reward"].to_numpy())
    frame, rate, rated = _peak_learning_rate(frame)
    read, planned = _plan(frame, read, given)
    # A trainer's default gives way to what the table itself shows.
    defaults = {name: item for name, item in read.items() if item.provenance == "default"}
    told = {name: item for name, item in read.items() if name not in defaults}
    settings = Settings(given, {**defaults, **_inferred_bounds(frame), **rate, **told})
    _check_bounds(frame, settings)
    frame, counted = add_counts(
        frame,
        batches,
        updates_per_step=settings.updates_per_step,
        refresh_interval=settings.refresh_interval,
        row_average=settings.row_average,
    )
    spaced = _spacing_note(frame, settings)
    said = (
        *notes,
        *renamed,
        *left_out,
        *dead,
        *numbered,
        *merged,
        *rated,
        *planned,
        *counted,
        *spaced,
    )
    return Run(name, ordered(frame), settings, source, said)


def _peak_learning_rate(
    frame: pd.DataFrame,
) -> tuple[pd.DataFrame, dict[str, Setting], tuple[str, ...]]:
    if "learning_rate" not in frame.columns:
        return frame, {}, ()
    peak = float(frame["learning_rate"].max())
    if not peak > 0:
        # Some loggers round to three decimals, and 1e-6 becomes 0: no schedule to be read off.
        note = "learning_rate is 0 or empty in every row (rounded by the logger?): column left out"
        return frame.drop(columns="learning_rate"), {}, (note,)
    return frame, {"learning_rate": Setting(peak, "read", "largest learning_rate in the log")}, ()


def _plan(
    frame: pd.DataFrame, read: dict[str, Setting], given: Mapping[str, Any]
) -> tuple[dict[str, Setting], tuple[str, ...]]:
    last = int(frame["step"].iloc[-1])
    planned = Settings(
        {name: value for name, value in given.items() if name == "max_steps"},
        {name: item for name, item in read.items() if name == "max_steps"},
    )["max_steps"]
    if planned.value is None or planned.value >= last:
        return read, ()
    if planned.provenance == "given":
        raise InputError(
            f"setting max_steps is {planned.value}, but the log goes to step {last}: expected the "
            "planned last step, at least the last one logged"
        )
    kept = {name: item for name, item in read.items() if name != "max_steps"}
    return kept, (f"max_steps {planned.value} in the log is below its last step {last}: ignored",)


def _inferred_bounds(frame: pd.DataFrame) -> dict[str, Setting]:
    bounds = natural_bounds(frame["reward"].to_numpy())
    if bounds is None:
        return {}
    hit = " and ".join(f"{b:g}" for b in bounds if math.isfinite(b))
    why = f"the reward is exactly {hit} in several rows and never beyond"
    return {"reward_bounds": Setting(bounds, "inferred", why)}


def _check_bounds(frame: pd.DataFrame, settings: Settings) -> None:
    if settings.reward_bounds is None:
        return
    low, high = settings.reward_bounds
    rounding = 1e-6 * (high - low)
    outside = (frame["reward"] < low - rounding) | (frame["reward"] > high + rounding)
    if outside.any():
        row = frame[outside].iloc[0]
        raise InputError(
            f"step {row['step']:g}, column 'reward': found {row['reward']:g}, outside the "
            f"reward_bounds {settings.reward_bounds}; widen or drop them"
        )


def _spacing_note(frame: pd.DataFrame, settings: Settings) -> tuple[str, ...]:
    spacing = int(frame["step"].diff().median())
    if spacing <= 1 or settings["row_average"].provenance != "default":
        return ()
    return (
        f"rows lie {spacing} steps apart and each is taken as one rollout batch: pass "
        "row_average='window' if a row is the mean of all steps since the row before",
    )
