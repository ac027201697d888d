"""retrain: a flat metrics.jsonl, its TOML configuration."""

from bayes_grpo.readers.config import Config
from bayes_grpo.readers.protocol import Trainer
from bayes_grpo.settings import Setting


def settings(config: Config) -> dict[str, Setting]:
    """Translate retrain's configuration.

    Parameters
    ----------
    config
        Of ``config.toml``.

    Returns
    -------
    dict of str to Setting
        ``batch_size`` counts prompts.
    """
    found = {
        "group_size": config.setting("training.group_size", "group_size"),
        "prompts_per_step": config.setting("training.batch_size", "batch_size"),
        "learning_rate": config.setting("training.lr", "lr"),
        "max_steps": config.setting("training.max_steps", "max_steps"),
    }
    return {name: setting for name, setting in found.items() if setting is not None}


RETRAIN = Trainer(
    name="retrain",
    signature=("running_correct_rate", "sepa_lambda"),
    columns={
        "reward": ("mean_reward", "correct_rate"),
        "zero_std_fraction": ("reward_uniform_group_rate",),
    },
    settings=settings,
    defaults={"row_average": ("single", "retrain logs every step")},
)
