"""The trainers whose logs are known, in the order in which they are asked."""

from collections.abc import Iterable

from bayes_grpo.readers.areal import AREAL
from bayes_grpo.readers.ms_swift import MS_SWIFT
from bayes_grpo.readers.nemo_rl import NEMO_RL
from bayes_grpo.readers.open_instruct import OPEN_INSTRUCT
from bayes_grpo.readers.openrlhf import OPENRLHF
from bayes_grpo.readers.plain import PLAIN
from bayes_grpo.readers.prime_rl import PRIME_RL
from bayes_grpo.readers.protocol import Trainer
from bayes_grpo.readers.retrain import RETRAIN
from bayes_grpo.readers.skyrl import SKYRL
from bayes_grpo.readers.slime import SLIME
from bayes_grpo.readers.trl import TRL
from bayes_grpo.readers.unsloth import UNSLOTH
from bayes_grpo.readers.verl import VERL

TRAINERS: tuple[Trainer, ...] = (
    VERL,
    OPENRLHF,
    SKYRL,
    NEMO_RL,
    SLIME,
    AREAL,
    PRIME_RL,
    OPEN_INSTRUCT,
    RETRAIN,
    MS_SWIFT,  # a TRL underneath
    UNSLOTH,  # another one
    TRL,
)
"""The first whose signature a log has is taken for its trainer."""


def trainer_of(columns: Iterable[object], otherwise: Trainer = PLAIN) -> Trainer:
    """Find the trainer that gives its columns such names.

    Parameters
    ----------
    columns
        The columns of a log.
    otherwise
        What to return if no trainer's signature is among them.

    Returns
    -------
    Trainer
    """
    columns = list(columns)
    return next((trainer for trainer in TRAINERS if trainer.recognises(columns)), otherwise)
