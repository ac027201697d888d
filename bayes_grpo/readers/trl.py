"""TRL's GRPOTrainer: key names of all its versions, its configuration, its console."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from bayes_grpo.readers.config import Config, as_number
from bayes_grpo.readers.config_text import literal
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer
from bayes_grpo.readers.records import missing
from bayes_grpo.settings import Setting

COLUMNS: dict[str, tuple[str, ...]] = {
    "step": ("step", "train/global_step"),
    "zero_std_fraction": (r"(train/)?frac_reward_zero_std",),
    "completion_length": (r"(train/)?completions/mean_length", r"(train/)?completion_length"),
    "clip_fraction": (r"(train/)?clip_ratio/region_mean", r"(train/)?clip_ratio"),
    "eval_reward": (r"eval[_/]reward", r"eval[_/]rewards/.+/mean", r"eval[_/]rewards/[^/]+"),
}

_BAR = re.compile(r"(\d+)/(\d+) \[\d+:\d+")
_SUMMARY = (
    "train_runtime",
    "train_loss",
    "train_samples_per_second",
    "train_steps_per_second",
)
_BARS = ("_bar", "_bar_total")


def settings(config: Config) -> dict[str, Setting]:
    """Translate the arguments of ``GRPOConfig``.

    Parameters
    ----------
    config
        Names as in TRL; those of a command line are the same.

    Returns
    -------
    dict of str to Setting
        The refresh interval is ``steps_per_generation * num_iterations /
        gradient_accumulation_steps`` optimizer steps.
    """
    found: dict[str, Setting | None] = {
        "group_size": config.setting("num_generations"),
        "learning_rate": config.setting("learning_rate"),
        "kl_weight": config.setting("beta"),
        "momentum": config.setting("adam_beta1"),
        "refresh_interval": _refresh_interval(config),
        "prompts_per_step": _prompts(config),
        "max_steps": _positive(config.setting("max_steps")),
    }
    optimizer = config.find("optim")
    if optimizer is not None and str(optimizer.value).lower() == "sgd":
        found["momentum"] = Setting(0.0, "read", f"{optimizer}: no momentum")
    staleness = config.number("max_staleness")
    if staleness:
        found["lag"] = Setting(staleness, "read", f"max_staleness = {staleness:g}, its upper bound")
    scale = config.find("scale_rewards")
    if scale is not None and str(scale.value).lower() == "batch":
        found["reward_std_kind"] = Setting("pooled", "read", str(scale))
    return {name: setting for name, setting in found.items() if setting is not None}


def _positive(setting: Setting | None) -> Setting | None:
    return setting if setting is not None and setting.value >= 1 else None


def _refresh_interval(config: Config) -> Setting | None:
    iterations = config.number("num_iterations")
    accumulation = config.number("gradient_accumulation_steps")
    per_generation = config.number("steps_per_generation")
    if iterations is None and per_generation is None:
        return None
    if per_generation is None or not accumulation:
        interval, why = iterations or 1.0, f"num_iterations = {iterations or 1:g}"
    else:
        interval = per_generation * (iterations or 1) / accumulation
        why = (
            f"steps_per_generation x num_iterations / gradient_accumulation_steps = "
            f"{per_generation:g} x {iterations or 1:g} / {accumulation:g}"
        )
    if interval < 1 or interval != int(interval):
        return None
    return Setting(int(interval), "read", why)


def _prompts(config: Config) -> Setting | None:
    """Prompts of one generation: its completions over the group size."""
    group = config.number("num_generations")
    if not group:
        return None
    completions = config.number("generation_batch_size")
    why = f"generation_batch_size / num_generations = {completions or 0:g} / {group:g}"
    provenance = "read"
    if not completions:
        per_device = config.number("per_device_train_batch_size")
        steps = config.number("steps_per_generation") or config.number(
            "gradient_accumulation_steps"
        )
        if not per_device:
            return None
        processes = config.number("world_size", "num_processes", "nproc_per_node")
        completions = per_device * (steps or 1) * (processes or 1)
        provenance = "read" if processes else "inferred"
        assumed = "" if processes else ", taken to be 1 process"
        why = (
            f"per_device_train_batch_size x steps x processes / num_generations = "
            f"{per_device:g} x {steps or 1:g} x {processes or 1:g} / {group:g}{assumed}"
        )
    prompts = completions / group
    if prompts < 1 or prompts != int(prompts):
        return None
    return Setting(int(prompts), provenance, why)  # type: ignore[arg-type]


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Rebuild the steps of a console log, and note what the rows tell.

    Parameters
    ----------
    table
        Rows with canonical names.
    known
        What is known so far.

    Returns
    -------
    Adjusted
    """
    found = {"row_average": Setting("window", "read", "TRL averages everything since the last log")}
    table, of_steps = with_steps(table)
    modern = {"num_tokens", "clip_fraction"} <= set(table.columns)
    if modern and "kl" not in table.columns:
        found["kl_weight"] = Setting(0.0, "inferred", "TRL logs kl only where beta is not 0")
    return Adjusted(table, {**found, **of_steps.settings}, of_steps.notes)


def with_steps(table: pd.DataFrame) -> tuple[pd.DataFrame, Adjusted]:
    """Number rows whose log does not: the console of Hugging Face trainers prints no step.

    Parameters
    ----------
    table
        Rows in the order of the log.

    Returns
    -------
    table : pandas.DataFrame
        With a column ``step``, without the closing summary.
    found : Adjusted
        Settings and notes.
    """
    last = missing(table["train_runtime"]) if "train_runtime" in table.columns else None
    summary = table[~last] if last is not None else table.iloc[:0]
    rows = (table[last] if last is not None else table).reset_index(drop=True)
    bars = rows[[name for name in _BARS if name in rows.columns]]
    rows = rows.drop(
        columns=[*bars.columns, *(n for n in summary.columns if n in _SUMMARY)], errors="ignore"
    )
    if "step" in rows.columns or rows.empty:
        return rows, Adjusted(rows)
    pieces = _pieces(rows)
    spacing, total, why = _spacing(rows, bars, summary)
    numbers = np.concatenate([np.arange(start, start + n) for start, n in pieces]) + 1.0
    settings = {} if not total else {"max_steps": Setting(int(total), "read", "the progress bar")}
    if spacing is None:
        note = (
            "the log does not tell its steps: the rows were numbered; if logging_steps was n, "
            "pass updates_per_step=n"
        )
        return rows.assign(step=numbers), Adjusted(rows, {}, (note,))
    note = f"steps rebuilt from the order of the rows, {spacing} apart: {why}"
    return rows.assign(step=numbers * spacing), Adjusted(rows, settings, (note,))


def _pieces(rows: pd.DataFrame) -> list[tuple[int, int]]:
    """Return first index and length of each stretch in which the epoch never falls."""
    if "epoch" not in rows.columns:
        return [(0, len(rows))]
    epochs = np.array([as_number(cell) or np.nan for cell in rows["epoch"]], dtype=float)
    falls = np.flatnonzero(np.diff(epochs) < 0) + 1
    edges = [0, *falls.tolist(), len(rows)]
    rises = np.diff(epochs)
    rise = float(np.median(rises[rises > 0])) if (rises > 0).any() else np.nan
    pieces = []
    for start, end in pairwise(edges):
        resumed = epochs[start] / rise - 1 if start and rise > 0 else 0.0
        pieces.append((round(resumed) if np.isfinite(resumed) else 0, end - start))
    return pieces


def _spacing(
    rows: pd.DataFrame, bars: pd.DataFrame, summary: pd.DataFrame
) -> tuple[int | None, int, str]:
    """Find how many steps lie between two rows, and the planned number of steps."""
    total = 0
    if len(bars.columns) == 2 and not missing(bars["_bar_total"]).all():
        total = int(bars["_bar_total"].dropna().mode().iloc[0])
        done = bars.loc[bars["_bar_total"] == total, "_bar"].astype(float).to_numpy()
        spacings = np.diff(done)
        if len(done) == len(rows) > 2 and (spacings > 0).all():
            spacing = int(np.median(spacings))
            offsets = done - spacing * np.arange(1, len(done) + 1)
            if np.ptp(offsets) <= max(1, spacing // 2):
                return spacing, total, "the progress bars beside them"
        # Where output is buffered, all bars come before all rows.
        reached, n = int(done.max()), len(rows)
        if (
            (spacing := reached // n) >= 1
            and reached // (n + 1) < reached / n < spacing + 1
            and (spacing == reached / n or reached // spacing == n)
        ):
            return spacing, total, f"{n} rows for the {reached} steps of the progress bar"
    if len(summary):
        speed = as_number(summary.get("train_steps_per_second", pd.Series([None])).iloc[-1])
        seconds = as_number(summary["train_runtime"].iloc[-1])
        if speed and seconds:
            spacing = round(speed * seconds / len(rows))
            if spacing >= 1 and abs(speed * seconds / len(rows) / spacing - 1) < 0.02:
                return spacing, total, "runtime x speed in the closing row"
    return None, total, ""


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read the dictionaries that Hugging Face trainers print.

    Parameters
    ----------
    lines
        Marked lines; a progress bar may stand before or behind a dictionary.

    Yields
    ------
    dict
        A row each, with the last progress bar before it as ``_bar`` of ``_bar_total``. Evaluations
        keep nothing but what is called so.
    """
    bar: tuple[float, float] | None = None
    for line in lines:
        before = line.partition("{'")[0]
        for done, total in _BAR.findall(before):
            if float(total) > 1:
                bar = (float(done), float(total))
        start, end = line.find("{'"), line.rfind("}")
        if start < 0 or end < start:
            continue
        row = literal(line[start : end + 1])
        if not isinstance(row, dict) or not row or not all(isinstance(key, str) for key in row):
            continue
        if any(key.startswith(("eval_", "eval/")) for key in row):
            yield {k: v for k, v in row.items() if k.startswith(("eval_", "eval/"))}
        elif "train_runtime" in row:
            yield {k: v for k, v in row.items() if k.startswith("train_")}
        elif "reward" in row or "loss" in row:
            yield row if bar is None else row | dict(zip(_BARS, bar, strict=True))


CONSOLE = Console(
    marks=("'reward'", "'loss'", "'eval_", "'train_runtime'", "it/s", "s/it"),
    rows=rows_of_console,
    closed=True,
)

TRL = Trainer(
    name="TRL",
    signature=(
        r"(train/)?frac_reward_zero_std",
        r"(train/)?completions/(mean_length|mean_terminated_length|clipped_ratio)",
        r"(train/)?clip_ratio/region_mean",
        r"(train/)?rewards/[^/]+/(mean|std)",
        r"(train/)?sampling/sampling_logp_difference/mean",
    ),
    columns=COLUMNS,
    settings=settings,
    defaults={
        "group_size": (8, "not in the log: TRL's default num_generations"),
        "momentum": (0.9, "not in the log: TRL's default adam_beta1"),
        "refresh_interval": (1, "not in the log: TRL's default, on-policy"),
    },
    adjust=adjust,
    console=CONSOLE,
)
