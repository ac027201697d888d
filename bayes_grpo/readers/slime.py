"""slime: lines of rollouts and of training steps, Megatron's arguments."""

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.config_text import literal
from bayes_grpo.readers.joining import DROPPED, gathered, owners_by_step
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, spelled
from bayes_grpo.readers.records import missing, number_or_nan
from bayes_grpo.settings import Setting

# eval/<set> is the mean reward; shares and lengths of the same set are not.
_EVALUATION = r"eval/(?!step$)[^/]+(?<!-truncated_ratio)(?<!-aborted_ratio)"
_PASS_RATE = re.compile(r"eval/.+-pass@\d+")
_LINE = re.compile(r"(?<![\w-])(rollout|perf|step|eval) (\d{1,15}): (\{.*\})")
_STEPS = {"rollout": "rollout/step", "perf": "rollout/step", "step": "train/step"}
_COUNT = re.compile(r"rollout/zero_std/count_.+")


def settings(config: Config) -> dict[str, Setting]:
    """Translate slime's arguments, of which many are Megatron's.

    Parameters
    ----------
    config
        Of the command line, or as Megatron prints it.

    Returns
    -------
    dict of str to Setting
        A logged step is a rollout: ``num_steps_per_rollout`` optimizer updates, or
        ``rollout_batch_size * n_samples_per_prompt / global_batch_size``. The sampler gets new
        weights every ``update_weights_interval`` rollouts.
    """
    updates = _updates(config)
    found: dict[str, Setting | None] = {
        "group_size": config.setting("n_samples_per_prompt"),
        "prompts_per_step": config.setting("rollout_batch_size"),
        "learning_rate": config.setting("lr"),
        "momentum": config.setting("adam_beta1"),
        "max_steps": config.setting("num_rollout"),
        "updates_per_step": updates,
        "kl_weight": config.setting("kl_loss_coef") or config.setting("kl_coef"),
    }
    if updates is not None:
        every = int(config.number("update_weights_interval") or 1)
        why = updates.why + (f", weights passed on every {every} rollouts" if every > 1 else "")
        found["refresh_interval"] = Setting(updates.value * every, updates.provenance, why)
    in_loss = config.find("use_kl_loss")
    if in_loss is not None and str(in_loss.value) == "False":
        found["kl_weight"] = config.setting("kl_coef")
    if filtering := config.find("dynamic_sampling_filter_path"):
        found["reward_filtered"] = Setting(True, "read", str(filtering))
    return {name: setting for name, setting in found.items() if setting is not None}


def _updates(config: Config) -> Setting | None:
    if (steps := config.number("num_steps_per_rollout")) and steps >= 1:
        return Setting(int(steps), "read", f"num_steps_per_rollout = {steps:g}")
    prompts, group = config.number("rollout_batch_size"), config.number("n_samples_per_prompt")
    batch = config.number("global_batch_size")
    if not (prompts and group and batch):
        return None
    steps, rest = divmod(prompts * group, batch)
    if rest or steps < 1:
        return None
    why = (
        "rollout_batch_size x n_samples_per_prompt / global_batch_size = "
        f"{prompts:g} x {group:g} / {batch:g}"
    )
    return Setting(int(steps), "read", why)


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Bring the records of each rollout onto one row.

    Parameters
    ----------
    table
        Records with canonical names: what was sampled has the number of the rollout, what was
        trained that of the training step, evaluations that of the rollout.
    known
        What is known so far.

    Returns
    -------
    Adjusted
        Training quantities are the mean over the training steps of the rollout.

    Raises
    ------
    InputError
        If there is no reward but the normalised one.
    """
    if "reward" not in table.columns:
        if any(spelled(name) == "rollout/rewards" for name in table.columns):
            raise InputError(
                "'rollout/rewards' is the reward after normalisation within its group, whose mean "
                "is 0 whatever the policy does: expected 'rollout/raw_reward', export that too"
            )
        return Adjusted(table)
    names = {spelled(name): name for name in table.columns}
    steps = _numbers(table, names.get("train/step"))
    evaluations = _numbers(table, names.get("eval/step"))
    if "step" in table.columns and np.isfinite(evaluations).any():
        own = table["step"].astype(object).where(~missing(table["step"]), evaluations)
        table = table.assign(step=own.where(own.notna(), None))
    rewarded = ~missing(table["reward"]).to_numpy()
    owners = owners_by_step(table)
    # A training step belongs to the rollout before it: one is trained on before the next is logged.
    training = np.isfinite(steps) & ~rewarded
    last = np.maximum.accumulate(np.where(rewarded, np.arange(len(table)), DROPPED))
    owners[training] = last[training]
    idle = ~rewarded & ~training & (owners == np.arange(len(table)))
    if "eval_reward" in table.columns:
        idle &= missing(table["eval_reward"]).to_numpy()
    owners[idle] = DROPPED  # sampled, but not trained on as far as the log goes
    found, notes = _counted_updates(table, owners, training, known.settings)
    rows = gathered(table, owners)
    rows, of_counts = _with_zero_std(rows, known.settings)
    rows = rows.drop(columns=[names[n] for n in ("train/step", "eval/step") if n in names])
    return Adjusted(rows, found, (*notes, *of_counts))


def _numbers(table: pd.DataFrame, name: object) -> np.ndarray:
    if name is None:
        return np.full(len(table), np.nan)
    return table[name].map(number_or_nan).to_numpy(dtype=float)


def _counted_updates(
    table: pd.DataFrame, owners: np.ndarray, training: np.ndarray, known: Mapping[str, Setting]
) -> tuple[dict[str, Setting], tuple[str, ...]]:
    used = owners[training & (owners != DROPPED)]
    if used.size == 0 or "step" not in table.columns:
        return {}, ()
    counts = np.unique(used, return_counts=True)[1]
    complete = counts[:-1] if counts.size > 1 else counts  # the last may still be trained on
    updates = int(np.median(complete))
    note = f"training quantities are means over the training steps of a rollout, {updates} each"
    rollouts = np.unique(owners[~missing(table["reward"]).to_numpy()])
    spacings = np.diff(table["step"].iloc[rollouts].map(number_or_nan).to_numpy(dtype=float))
    spacings = spacings[np.isfinite(spacings)]
    in_updates = updates > 1 and spacings.size > 0 and np.median(spacings) == updates
    step = 1 if in_updates else updates  # --wandb-always-use-train-step counts training steps
    why = f"{updates} training steps were logged for each rollout"
    found = {"updates_per_step": Setting(step, "read", why)}
    every = 1
    if "refresh_interval" in known and "updates_per_step" in known:
        every = max(1, known["refresh_interval"].value // known["updates_per_step"].value)
    found["refresh_interval"] = Setting(updates * every, "read", why)
    return found, ((note,) if updates > 1 else ())


def _with_zero_std(
    rows: pd.DataFrame, known: Mapping[str, Setting]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Make a fraction of the counts of prompts whose rewards are all the same."""
    counts = [name for name in rows.columns if _COUNT.fullmatch(spelled(name))]
    if not counts:
        return rows, ()
    numbers = rows[counts].map(number_or_nan).astype(float)
    rest = rows.drop(columns=counts)
    prompts = known.get("prompts_per_step")
    if prompts is None or prompts.provenance == "default":
        note = (
            "rollout/zero_std counts prompts without contrast, but the log does not tell the "
            "rollout batch size: pass prompts_per_step to have the fraction"
        )
        return rest, (note,)
    total = numbers.sum(axis=1)
    if "completion_length" in rows.columns:  # is on the same line, which may be missing
        total = total.where(~missing(rows["completion_length"]) | numbers.notna().any(axis=1))
    if (total > prompts.value).any():
        note = (
            f"rollout/zero_std counts up to {total.max():g} prompts, more than prompts_per_step = "
            f"{prompts.value}: left out"
        )
        return rest, (note,)
    return rest.assign(zero_std_fraction=total / prompts.value), ()


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read the lines ``rollout N: {...}``, ``perf N: {...}``, ``step N: {...}``, ``eval N: {...}``.

    Parameters
    ----------
    lines
        Marked lines; a time and a place in the code may stand before.

    Yields
    ------
    dict
        A record each, of one kind; `derive` joins them.
    """
    for line in lines:
        match = _LINE.search(line)
        row = literal(match.group(3)) if match else None
        if match is None or not isinstance(row, dict):
            continue
        kind, number = match.group(1), int(match.group(2))
        if kind == "eval":
            own = {k: v for k, v in row.items() if re.fullmatch(_EVALUATION, str(k))}
            yield {"eval/step": number} | {k: v for k, v in own.items() if not _PASS_RATE.match(k)}
        else:
            yield row | {_STEPS[kind]: number}


SLIME = Trainer(
    name="slime",
    signature=(
        r"rollout/(raw_reward|step|log_probs|rollout_log_probs|response_lengths)",
        r"rollout/zero_std/.*",
        r"train/lr-pg_\d+",
    ),
    columns={
        "step": ("rollout/step",),
        "reward": ("rollout/raw_reward",),
        "kl": ("train/kl_loss",),  # train/ppo_kl is the divergence from the sampler
        "entropy": ("train/entropy_loss",),
        "completion_length": ("rollout/response_len/mean", "rollout/response_lengths"),
        "clip_fraction": ("train/pg_clipfrac",),
        "grad_norm": ("train/grad_norm",),
        "learning_rate": (r"train/lr-pg_\d+",),
        "eval_reward": (_EVALUATION,),
    },
    settings=settings,
    defaults={
        "momentum": (0.9, "not in the log: slime's default, Megatron's adam_beta1"),
        "row_average": ("single", "slime logs every rollout"),
    },
    adjust=adjust,
    console=Console(marks=("'rollout/", "'train/", "'eval/"), rows=rows_of_console, closed=True),
)
