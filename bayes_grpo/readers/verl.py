"""verl and its forks: the console line, the file logger, names of metrics, Hydra configuration."""

import math
import re
from collections.abc import Iterable, Iterator

import pandas as pd

from bayes_grpo.readers.config import Config, as_number, positive, whole
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, in_turn, spelled
from bayes_grpo.readers.records import number_or_nan, without_prefix
from bayes_grpo.settings import Setting

_ACTOR = "actor_rollout_ref.actor"

# The file logger puts its metrics under "data"; the score is the verifier's, before any penalty.
COLUMNS: dict[str, tuple[str, ...]] = {
    "step": ("step", "(data/)?training/global_step"),
    "reward": tuple(
        f"(data/)?{name}/mean" for name in ("critic/score", "critic/rewards", "episode/reward")
    ),
    "kl": tuple(
        f"(data/)?{name}" for name in ("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl")
    ),
    "entropy": ("(data/)?actor/entropy", "(data/)?actor/entropy_loss"),
    "completion_length": ("(data/)?response_length/mean",),
    "clip_fraction": ("(data/)?actor/pg_clipfrac",),
    "grad_norm": ("(data/)?actor/grad_norm",),
    "learning_rate": ("(data/)?actor/lr",),
    "eval_reward": tuple(
        f"(data/)?{name}"
        for name in (
            r"val-core/.+/acc/mean(@|_at_)\d+(/mean)?",
            r"val-core/.+/reward/mean(@|_at_)\d+(/mean)?",
            "val/test_score/.+",
            "val/.+/test_score",
            "val/success_rate",
        )
    ),
}

_STEP = re.compile(r"(?<![\w/.])step:(\d{1,15}) - ")
_OWN = re.compile(r" - (?:actor|critic|val|val-core|val-aux|episode|training|response_length)/")
_TOTAL = re.compile(r"Total training steps: (\d{1,15})")
_SCALED = re.compile(r"actor/lr\((.+)\)")


def settings(config: Config) -> dict[str, Setting]:
    """Translate verl's Hydra configuration.

    Parameters
    ----------
    config
        From the printed dictionary, overrides, or a file beside the log.

    Returns
    -------
    dict of str to Setting
        A logged step is one rollout, used for ``train_batch_size / ppo_mini_batch_size x
        ppo_epochs`` optimizer updates (mini-batches count prompts).
    """
    # verl-agent samples the group with parallel environments instead.
    environments = config.number("env.rollout.n") or 0
    group = "env.rollout.n" if environments > 1 else "actor_rollout_ref.rollout.n"
    updates = None if environments > 1 else _updates(config)
    filtered = config.find("algorithm.filter_groups.enable")
    found: dict[str, Setting | None] = {
        "group_size": config.count(group),
        "prompts_per_step": config.count("data.train_batch_size"),
        "learning_rate": positive(config.setting(f"{_ACTOR}.optim.lr")),
        "momentum": config.setting(f"{_ACTOR}.optim.betas"),
        "max_steps": config.count("trainer.total_training_steps"),
        "kl_weight": _kl_weight(config),
        "updates_per_step": updates,
        "refresh_interval": updates,
        "lag": _lag(config),
    }
    if filtered is not None and config.flag("algorithm.filter_groups.enable"):
        found["reward_filtered"] = Setting(True, "read", str(filtered))
    return {name: setting for name, setting in found.items() if setting is not None}


def _updates(config: Config) -> Setting | None:
    batch = config.number("data.train_batch_size")
    mini = config.number(f"{_ACTOR}.ppo_mini_batch_size")
    epochs = config.number(f"{_ACTOR}.ppo_epochs") or 1
    if not batch or not mini or mini < 1:
        return None
    why = f"train_batch_size / ppo_mini_batch_size x ppo_epochs = {batch:g} / {mini:g} x {epochs:g}"
    return whole(math.ceil(batch / mini) * epochs, why)


def _kl_weight(config: Config) -> Setting | None:
    in_loss, in_reward = f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"
    of_reward = config.find("algorithm.kl_ctrl.kl_coef")
    if config.flag(in_loss):
        return config.setting(f"{_ACTOR}.kl_loss_coef")
    # The first versions had no switch; overrides alone do not show which version it was.
    whole_config = of_reward is not None and "command line" not in of_reward.source
    if config.flag(in_reward) or (whole_config and config.flag(in_reward) is None):
        return config.setting("algorithm.kl_ctrl.kl_coef")
    if config.flag(in_loss) is False and config.flag(in_reward) is False:
        return Setting(0.0, "read", f"{config.find(in_loss)}, {config.find(in_reward)}")
    return None


def _lag(config: Config) -> Setting | None:
    def ending(name: str) -> str:
        return next((key for key in config.values if key.endswith(name)), name)

    mode = config.find(ending("trainer_mode"))
    threshold = ending("max_off_policy_threshold")
    if mode is None or not str(mode.value).endswith("async"):
        return None
    why = f"{mode}; {config.find(threshold)}, its upper bound"
    return whole(config.number(threshold), why, "inferred")


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Bring the names of the file logger to those of the others, and undo a scaled column.

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
    table = without_prefix(table, "data/")
    for name in table.columns:
        # Early forks print actor/lr(1e-4):0.010 for a learning rate of 1e-6.
        scaled = _SCALED.fullmatch(spelled(name))
        unit = as_number(scaled.group(1)) if scaled else None
        if unit and "learning_rate" not in table.columns:
            table = table.assign(learning_rate=table[name].map(number_or_nan) * unit)
            table = table.drop(columns=name)
    single = Setting("single", "read", "verl logs each rollout batch")
    return Adjusted(table, {"row_average": single})


def with_configuration(table: pd.DataFrame, known: Known) -> Adjusted:
    """Say where the log is not of GRPO, and fill settings from columns that repeat them.

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
    config = known.config
    notes = []
    found: dict[str, Setting] = {}
    estimator = config.find("algorithm.adv_estimator")
    if estimator is not None and not str(estimator.value).lower().startswith("grpo"):
        notes.append(f"{estimator}: not GRPO, so what is said of groups does not hold for it")
    elif estimator is None and "critic/vf_loss" in table.columns:
        notes.append("a value network was trained (critic/vf_loss): this is PPO, not GRPO")
    from_config = settings(config)
    if "kl_weight" not in from_config and "actor/kl_coef" in table.columns:
        values = set(table["actor/kl_coef"].map(number_or_nan).dropna())
        if len(values) == 1 and (value := values.pop()) > 0:
            found["kl_weight"] = Setting(value, "read", "column 'actor/kl_coef'")
    if "_total" in table.columns:
        total = table["_total"].map(number_or_nan).max()
        planned = whole(total if total == total else None, "'Total training steps' in the log")
        if planned is not None and "max_steps" not in from_config:
            found["max_steps"] = planned
        table = table.drop(columns="_total")
    logged = "learning_rate" in table.columns and table["learning_rate"].map(number_or_nan).max()
    if "learning_rate" not in from_config and not (logged and logged > 0):
        why = "not in the log: verl's default actor.optim.lr"
        found["learning_rate"] = Setting(1e-6, "default", why)
    return Adjusted(table, found, tuple(notes))


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read lines such as ``step:12 - actor/pg_loss:-0.003 - critic/score/mean:0.4``.

    Parameters
    ----------
    lines
        Marked lines.

    Yields
    ------
    dict
        A row each; validation has a line of its own, or stands in the line of its step.
    """
    total: int | None = None
    for line in lines:
        start = _STEP.search(line)
        if start is None:
            if planned := _TOTAL.search(line):
                total = int(planned.group(1))
            continue
        if _OWN.search(line, start.end() - 3) is None:
            continue
        row: Row = {"step": int(start.group(1))}
        before = ""
        for piece in line[start.end() :].split(" - "):
            name, colon, value = (before + piece).rpartition(":")
            # " - " inside a name, as in that of a data set, does not end it.
            before = "" if colon else f"{before}{piece} - "
            if colon and (number := _number(value)) is not None:
                row[name.strip()] = number
        if total is not None:
            row["_total"] = total
        yield row


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        inner = re.fullmatch(r"\s*[\w.]+\(([^(),]+)[^()]*\)\s*", text)  # np.float64(0.35)
        return None if inner is None else as_number(inner.group(1))


VERL = Trainer(
    name="verl",
    signature=(
        r"(data/)?critic/(score|rewards)/(mean|max|min)",
        r"(data/)?actor/(pg_loss|pg_clipfrac|ppo_kl|kl_loss|entropy|entropy_loss)",
        r"(data/)?val-(core|aux)/.+",
        r"(data/)?val/test_score/.+",
        r"(data/)?episode/reward/(mean|max|min)",
    ),
    columns=COLUMNS,
    settings=settings,
    defaults={
        "group_size": (8, "not in the log; verl's default rollout.n, 1, would be no group"),
        "momentum": (0.9, "not in the log: verl's default actor.optim.betas"),
    },
    adjust=in_turn(adjust, with_configuration),
    console=Console(marks=("step:", "Total training steps: "), rows=rows_of_console),
)
