"""SkyRL: the dictionary printed over several lines at each step, its keys, its overrides."""

import math
import re
from collections.abc import Iterable, Iterator

import pandas as pd

from bayes_grpo.readers.config import Config, positive, whole
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, spelled
from bayes_grpo.readers.records import number_or_nan
from bayes_grpo.settings import Setting

COLUMNS: dict[str, tuple[str, ...]] = {
    "step": ("step", "trainer/global_step"),
    "reward": ("reward/avg_raw_reward",),
    "kl": ("policy/policy_kl.*", "policy/loss_metrics/policy_kl.*", "loss/avg_kl"),
    "entropy": ("policy/policy_entropy.*",),
    "completion_length": ("generate/avg_num_tokens", "generate/avg_assistant_tokens"),
    "clip_fraction": (r"policy/(loss_metrics/)?(ppo_)?clip_ratio",),
    "grad_norm": (r"policy/(raw_)?grad_norm.*",),
    "learning_rate": ("policy/policy_lr.*",),
    "eval_reward": ("eval/all/avg_score", "eval/.+/avg_score"),
}

_STEP = re.compile(r"(?:^|[\s-])Step (\d{1,15}): *$")
_PAIR = re.compile(r"'([^']+)': '?(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf)'?(?=[,}\s]|$)")
_COUNTS = ("reward/num_zero_variance_filtered", "reward/num_zero_variance_groups")
_GROUP_IN_NAME = re.compile(r"reward/avg_pass_at_(\d{1,6})")


def settings(config: Config) -> dict[str, Setting]:
    """Translate SkyRL's Hydra overrides.

    Parameters
    ----------
    config
        Names such as ``generator.n_samples_per_prompt``.

    Returns
    -------
    dict of str to Setting
        A step is one rollout, used for ``train_batch_size / policy_mini_batch_size x
        update_epochs_per_batch`` optimizer updates.
    """
    group, batch = "generator.n_samples_per_prompt", "trainer.train_batch_size"
    optimizer = "trainer.policy.optimizer_config"
    algorithm = "trainer.algorithm"
    updates = _updates(config)
    found: dict[str, Setting | None] = {
        "group_size": config.count(group),
        "prompts_per_step": config.count(batch),
        "updates_per_step": updates,
        "refresh_interval": updates,
        "learning_rate": positive(config.setting(f"{optimizer}.lr")),
        "momentum": config.setting(f"{optimizer}.adam_betas"),
    }
    in_loss = config.flag(f"{algorithm}.use_kl_loss")
    in_reward = config.flag(f"{algorithm}.use_kl_in_reward")
    if in_loss or in_reward:
        found["kl_weight"] = config.setting(f"{algorithm}.kl_loss_coef")
    elif in_loss is False:
        why = str(config.find(f"{algorithm}.use_kl_loss"))
        found["kl_weight"] = Setting(0.0, "read", why)
    sampling = config.find(f"{algorithm}.dynamic_sampling.type")
    if sampling is not None and str(sampling.value).lower() in ("filter", "replace"):
        found["reward_filtered"] = Setting(True, "read", str(sampling))
    return {name: setting for name, setting in found.items() if setting is not None}


def _updates(config: Config) -> Setting | None:
    batch = config.number("trainer.train_batch_size")
    mini = config.number("trainer.policy_mini_batch_size")
    epochs = config.number("trainer.update_epochs_per_batch") or 1
    if not batch or not mini or mini < 1:
        return None
    why = (
        "train_batch_size / policy_mini_batch_size x update_epochs_per_batch = "
        f"{batch:g} / {mini:g} x {epochs:g}"
    )
    return whole(math.ceil(batch / mini) * epochs, why)


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Turn counts of groups into fractions, and staleness in steps into a lag in updates.

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
    from_config = settings(config)
    found = {"row_average": Setting("single", "read", "SkyRL logs each rollout batch")}
    notes: list[str] = []
    names = [match for name in table.columns if (match := _GROUP_IN_NAME.fullmatch(spelled(name)))]
    if "group_size" not in from_config and names and (group := int(names[0].group(1))) > 1:
        found["group_size"] = Setting(group, "read", f"the name of '{names[0].group()}'")
    counts = next((name for name in table.columns if spelled(name) in _COUNTS), None)
    if counts is not None and "prompts_per_step" in from_config:
        prompts = from_config["prompts_per_step"].value
        fraction = table[counts].map(number_or_nan).astype(float) / prompts
        if not (fraction > 1).any():
            table = table.assign(zero_std_fraction=fraction)
            notes.append(f"zero_std_fraction is '{counts}' / {prompts} prompts")
    elif counts is not None:
        notes.append(f"'{counts}' was not used: the prompts of a step are not known")
    lag = _lag(
        table,
        config,
        from_config["updates_per_step"].value if "updates_per_step" in from_config else 1,
    )
    if lag is not None:
        found |= {"lag": lag, "lag_pattern": Setting("constant", "inferred", lag.why)}
    return Adjusted(table, found, tuple(notes))


def _lag(table: pd.DataFrame, config: Config, updates: int) -> Setting | None:
    times = f" x {updates} updates a step" if updates > 1 else ""
    for name in table.columns:
        if spelled(name) == "async/staleness_mean":
            mean = float(table[name].map(number_or_nan).astype(float).mean())
            lag = round(mean * updates) if math.isfinite(mean * updates) else 0
            return whole(lag, f"mean of '{name}' {mean:.3g} steps{times}", "inferred")
    bound = "trainer.fully_async.max_staleness_steps"
    steps = config.number(bound)
    if not steps or config.flag("trainer.fully_async.enabled") is False:
        return None
    return whole(steps * updates, f"{config.find(bound)}, its upper bound{times}", "inferred")


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read ``Step 12:`` and the dictionary below it.

    Parameters
    ----------
    lines
        Marked lines.

    Yields
    ------
    dict
        A row for each dictionary with rewards or an evaluation. Its keys are in the order of the
        alphabet, so one that the end of the log cuts off before its reward gives none.
    """
    row: Row = {}
    for line in lines:
        if header := _STEP.search(line):
            if _has_result(row):
                yield row
            row = {"step": int(header.group(1))}
        elif row:
            row |= {name: float(value) for name, value in _PAIR.findall(line)}
    if _has_result(row):
        yield row


def _has_result(row: Row) -> bool:
    return any(name.startswith(("reward/", "eval/")) for name in row)


SKYRL = Trainer(
    name="SkyRL",
    signature=(
        r"reward/avg_raw_reward",
        r"reward/num_zero_variance_(filtered|groups)",
        r"eval/all/avg_score",
    ),
    columns=COLUMNS,
    settings=settings,
    defaults={
        "group_size": (5, "not in the log: SkyRL's default n_samples_per_prompt"),
        "prompts_per_step": (1024, "not in the log: SkyRL's default train_batch_size"),
    },
    adjust=adjust,
    console=Console(
        marks=(
            "Step ",
            "'async/",
            "'eval/",
            "'generate/",
            "'loss/",
            "'policy/",
            "'reward/",
            "'trainer/",
        ),
        rows=rows_of_console,
    ),
)
