"""prime-rl: metrics of the orchestrator and of the trainer, apart from one another."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.joining import gathered, owners_by_step, with_file_beside
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Records, Row, Trainer, spelled
from bayes_grpo.readers.records import number_or_nan
from bayes_grpo.settings import Setting

_ALL = r"train/agg/all(/[^/]+)?"  # every group that arrived
_EFFECTIVE = r"train/agg/effective(/[^/]+)?/reward/mean"  # without those that filters dropped
_OF_TRAINER = r"optim/(lr|grad_norm)|mismatch_kl/.+|loss/mean"
_SOLVED = (rf"{_ALL}/solved_(none|all)", r"batch/solve_(none|all)", r"solve_(none|all)/all")
_LAGS = (r"off_policy/mean", r"batch/async_level", r"async_level")
_OF_2025 = r"batch/solve_(none|all)|val_reward/mean|reward/mean|async_level|completion_len/mean"

_LINE = re.compile(
    r"(?:\bSUCCESS\b.*?\bStep (\d{1,15}) \| |\bStep (\d{1,15}) \| (?=Time: .*tokens))(.*)"
)
_PAIR = re.compile(r"([A-Za-z][A-Za-z. \-]*?):?\s+(-?\d[\d.]*(?:[eE][-+]?\d+)?)(?![\d.])")
# As the console calls them: what metrics.jsonl does.
_PRINTED = {
    "reward": "reward/mean",
    "val. reward": "val_reward/mean",
    "async level": "async_level",
    "entropy": "entropy/mean",
    "mismatch kl": "mismatch_kl/mean",
    "grad. norm": "optim/grad_norm",
    "lr": "optim/lr",
    "loss": "loss/mean",
    "seq. length": "seq_len/mean",
}


def settings(config: Config) -> dict[str, Setting]:
    """Translate prime-rl's configuration.

    Parameters
    ----------
    config
        Of the orchestrator's, the trainer's, or both parts' TOML file.

    Returns
    -------
    dict of str to Setting
        ``batch_size`` counts completions; a step is one optimizer update.
    """

    def own(*names: str) -> tuple[str, ...]:
        parts = ("", "orchestrator.", "trainer.")
        return tuple(f"{part}{name}" for name in names for part in parts)

    group = config.setting(*own("group_size", "rollouts_per_example"))
    found: dict[str, Setting | None] = {
        "group_size": group,
        "learning_rate": config.setting(*own("optim.lr")),
        "momentum": config.setting(*own("optim.betas1")),
        "max_steps": config.setting(*own("max_steps")),
    }
    batch = config.number(*own("batch_size"))
    if group and batch and group.value >= 1 and batch % group.value == 0:
        why = f"batch_size / group_size = {batch:g} / {group.value:g}"
        found["prompts_per_step"] = Setting(int(batch / group.value), "read", why)
    # Where both are set, the async level is what holds the sampler back.
    ahead = config.find(*own("max_async_level"), *own("max_off_policy_steps"))
    bound = config.number(*own("max_async_level"), *own("max_off_policy_steps"))
    if bound is not None:
        found["lag"] = Setting(bound, "read", f"{ahead}, its upper bound")
    filtering = config.find(*own("buffer.online_difficulty_filtering"))
    if filtering is not None and str(filtering.value).lower() == "true":
        found["reward_filtered"] = Setting(True, "read", str(filtering))
    return {name: setting for name, setting in found.items() if setting is not None}


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Find the reward, the lag, and the fraction of prompts without contrast.

    Parameters
    ----------
    table
        Records with canonical names; those of the trainer have no reward.
    known
        What is known so far.

    Returns
    -------
    Adjusted
        Records of one step on one row.

    Raises
    ------
    InputError
        If these are the trainer's metrics alone.
    """
    found: dict[str, Setting] = {}
    notes = []
    effective = _matching(table, _EFFECTIVE)
    if "reward" not in table.columns and effective:
        table = table.rename(columns={effective[0]: "reward"})
        why = f"only '{effective[0]}' was logged, which leaves out the groups that filters dropped"
        found["reward_filtered"] = Setting(True, "read", why)
        notes.append(f"reward taken from column '{effective[0]}'")
    if "reward" not in table.columns:
        if _matching(table, _OF_TRAINER):
            raise InputError(
                "these are the metrics of prime-rl's trainer, which have no reward: read the "
                "orchestrator's metrics.jsonl (in the folder beside, or in run_default); the "
                "trainer's is joined to it"
            )
        return Adjusted(table)
    rows = gathered(table, owners_by_step(table))
    for pattern in _SOLVED:
        solved = _matching(rows, pattern)
        if len(solved) != 2 or "zero_std_fraction" in rows.columns:
            continue
        total = rows[solved].map(number_or_nan).sum(axis=1, skipna=False)
        if total.dropna().between(0, 1 + 1e-6).all():
            rows = rows.assign(zero_std_fraction=total)
            note = f"zero_std_fraction is '{solved[0]}' + '{solved[1]}'"
            notes.append(f"{note}; for rewards other than 0 and 1 that is its lower bound")
    lag = _measured_lag(rows)
    old = _matching(table, _OF_2025) or "async_level" in table.columns
    if lag is not None:
        found["lag"] = lag
    elif (
        old
        and known.settings["lag"].provenance == "default"
        and not _matching(table, r"train/agg/.+")
    ):
        why = "not in the log: prime-rl's default max_async_level in 2025, its upper bound"
        found["lag"] = Setting(1, "default", why)
    return Adjusted(rows, found, tuple(notes))


def _matching(table: pd.DataFrame, pattern: str) -> list[str]:
    return [name for name in table.columns if re.fullmatch(pattern, spelled(name))]


def _measured_lag(rows: pd.DataFrame) -> Setting | None:
    for pattern in _LAGS:
        for name in _matching(rows, pattern):
            values = rows[name].map(number_or_nan).astype(float).dropna()
            with np.errstate(over="ignore", invalid="ignore"):
                mean = float(values.mean()) if len(values) else -1.0
            if 0 <= mean < 1e6:
                return Setting(round(mean), "inferred", f"'{name}' is {mean:.3g} on average")
    return None


def with_trainer(path: Path, records: Records) -> Records:
    """Add the metrics that the trainer left in a file of the same name in a folder beside.

    Parameters
    ----------
    path
        Of the orchestrator's file.
    records
        As read from it.

    Returns
    -------
    Records
        With the trainer's columns on the rows of the same step, and a note on it.
    """
    if _matching(records.table, _OF_TRAINER):
        return records  # the trainer's own file, or an export of both
    return with_file_beside(path, records, lambda table: bool(_matching(table, _OF_TRAINER)))


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read the lines ``Step N | Time: ... | Reward: ... | ...`` of orchestrator and trainer.

    Parameters
    ----------
    lines
        Marked lines.

    Yields
    ------
    dict
        A record each, under the names of ``metrics.jsonl``.
    """
    for line in lines:
        if (match := _LINE.search(line)) is None:
            continue
        row: Row = {"step": int(match.group(1) or match.group(2))}
        for piece in match.group(3).split("|"):
            pair = _PAIR.match(piece.strip())
            name = _PRINTED.get(pair.group(1).strip().lower()) if pair else None
            if pair and name:
                row[name] = float(pair.group(2))
        if len(row) > 1:
            yield row


PRIME_RL = Trainer(
    name="prime-rl",
    signature=(
        r"train/agg/(all|effective)/.+",
        r"mismatch_kl(/all)?/mean",
        "optim/lr",
        r"batch/effective_batch_size",
        r"val_reward/mean",
        r"off_policy/in_(flight|queue)/.+",
    ),
    columns={
        "reward": (rf"{_ALL}/reward/mean", "reward/all/mean", "reward/mean"),
        "kl": ("ref_kl/mean",),  # mismatch_kl compares trainer and sampler
        "entropy": (r"entropy(/all)?/mean",),
        "completion_length": (
            rf"{_ALL}/num_output_tokens/mean",
            r"(completion|decode)_len(/all)?/mean",
        ),
        "grad_norm": ("optim/grad_norm",),
        "learning_rate": ("optim/lr",),
        "eval_reward": (
            r"eval/[^/]+/all(/[^/]+)?/avg@\d+",
            r"eval/.+/avg@\d+",
            "val_reward/mean",
            r"eval/[^/]+/all(/[^/]+)?/reward/mean",
        ),
    },
    settings=settings,
    defaults={
        "momentum": (0.9, "not in the log: prime-rl's default optim.betas1"),
        "refresh_interval": (1, "prime-rl makes one update of a batch"),
        "updates_per_step": (1, "prime-rl makes one update of a batch"),
        "lag": (8, "not in the log: prime-rl's default max_off_policy_steps, its upper bound"),
        "row_average": ("single", "prime-rl logs every step"),
    },
    adjust=adjust,
    beside=with_trainer,
    console=Console(marks=("SUCCESS", "| Time: "), rows=rows_of_console),
)
