"""What a log turned out to hold: one screen about a run, before anything is fitted."""

import textwrap
from typing import Any

import numpy as np

from bayes_grpo.columns import CANONICAL
from bayes_grpo.run import Run

WIDTH = 96

# In the order in which their absence hurts: what each is needed for, and how to give it.
_MATTERS = {
    "group_size": "the temperature, the sampling noise and everything about G rest on it",
    "prompts_per_step": "the sampling noise of a row and the temperature rest on it",
    "max_steps": "the planned length sets the horizon of the forecast and the scale of the priors",
    "refresh_interval": "staleness and every stability threshold rest on it",
    "momentum": "it is the inertia: damping and period rest on it",
    "learning_rate": "curvature is in units of it, and a schedule ends runs before their plateau",
}


def missing_setting(run: Run) -> tuple[str, str] | None:
    """Name the one setting that the log lacks and that matters most.

    Parameters
    ----------
    run
        The run.

    Returns
    -------
    tuple of (str, str) or None
        The setting and why it matters; None if nothing that matters is a default.
    """
    for name, why in _MATTERS.items():
        if run.settings[name].provenance == "default":
            return name, why
    return None


def as_record(run: Run) -> dict[str, Any]:
    """Return what `describe` says, as plain values for JSON.

    Parameters
    ----------
    run
        The run.

    Returns
    -------
    dict
    """
    steps = run.table["step"]
    missing = missing_setting(run)
    return {
        "run": run.name,
        "source": run.source,
        "trainer": run.settings.trainer,
        "rows": len(run),
        "rows_with_reward": int(run.table["reward"].notna().sum()),
        "first_step": int(steps.iloc[0]),
        "last_step": int(steps.iloc[-1]),
        "columns": list(run.table.columns),
        "settings": {name: vars(run.settings[name]) for name in run.settings},
        "missing_setting": missing[0] if missing else None,
        "cautions": list(run.cautions),
        "notes": list(run.notes),
    }


def describe(run: Run) -> str:
    """Describe a run on one screen.

    Parameters
    ----------
    run
        The run.

    Returns
    -------
    str
        Trainer, rows and steps; columns with their means at both ends; settings with provenance;
        notes; and the setting that is missed most.
    """
    steps, rewarded = run.table["step"], int(run.table["reward"].notna().sum())
    lines = [
        f"{run.name}",
        f"  log      {run.source or 'a table'}",
        f"  trainer  {run.settings.trainer or 'not recognised: names that many logs share'}",
        f"  rows     {len(run)}, {rewarded} with a reward, steps {steps.iloc[0]:,} to "
        f"{steps.iloc[-1]:,}, {_spacing(run)}",
        "",
        *_columns(run),
        "",
        *_settings(run),
    ]
    for title, entries in (("caution", run.cautions), ("note", run.notes)):
        for entry in entries:
            lines += textwrap.wrap(
                f"{title}: {entry}", WIDTH, initial_indent="  ", subsequent_indent="    "
            )
    if (missing := missing_setting(run)) is not None:
        name, why = missing
        lines += ["", f"  missed most: {name} (--{name.replace('_', '-')}): {why}"]
    return "\n".join(lines)


def _spacing(run: Run) -> str:
    batches = run.table.loc[run.table["reward"].notna(), "generations"]
    gaps = run.table["step"].diff().dropna()
    apart = f"{gaps.median():g} apart" if len(gaps) else "a single one"
    typical = int(batches.median())
    each = "one rollout batch" if typical == 1 else f"the mean of {typical} rollout batches"
    return f"{apart}, each {each}"


def _columns(run: Run) -> list[str]:
    """Show each known column with its mean over the first and last tenth of its rows."""
    shown = [name for name in CANONICAL if name in run.table.columns and name != "step"]
    shown += list(run.components)
    width = max(len(name) for name in shown)
    lines = [f"  {'column'.ljust(width)}  {'rows':>6}  {'first tenth':>11}  {'last tenth':>11}"]
    for name in shown:
        values = run.table[name].dropna().to_numpy()
        tenth = max(1, len(values) // 10)
        with np.errstate(over="ignore", invalid="ignore"):
            ends = (values[:tenth].mean(), values[-tenth:].mean()) if len(values) else (np.nan,) * 2
        lines.append(
            f"  {name.ljust(width)}  {len(values):>6,}  {ends[0]:>11.4g}  {ends[1]:>11.4g}"
        )
    others = [n for n in run.table.columns if n not in (*shown, "step", "updates", "generations")]
    if others:
        text = ", ".join(others[:40]) + (f", and {len(others) - 40} more" if others[40:] else "")
        lines += textwrap.wrap(
            f"also: {text}", WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    return lines


def _settings(run: Run) -> list[str]:
    """Show settings that the log told before those that were assumed."""
    items = [(name, run.settings[name]) for name in run.settings if name != "trainer"]
    order = {"given": 0, "read": 1, "inferred": 2, "default": 3}
    items = [item for item in items if item[1].value is not None or item[1].provenance != "default"]
    items.sort(key=lambda item: order[item[1].provenance])
    rows = [(name, _value(item.value), item.provenance, item.why) for name, item in items]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = []
    for name, value, provenance, why in rows:
        head = f"  {name.ljust(widths[0])}  {value.ljust(widths[1])}  {provenance.ljust(widths[2])}"
        lines += textwrap.wrap(
            f"{head}  {why}",
            WIDTH + 20,
            subsequent_indent=" " * (len(head) + 2),
            drop_whitespace=True,
        )
    return lines


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{part:g}" for part in value) + ")"
    return str(value)
