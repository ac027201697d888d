"""Unsloth, which wraps TRL: the table that its notebooks show."""

from dataclasses import replace

import pandas as pd

from bayes_grpo.readers.protocol import Adjusted, Known, spelled
from bayes_grpo.readers.trl import TRL
from bayes_grpo.readers.trl import adjust as as_trl


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Say what the table lacks.

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
    done = as_trl(table, known)
    if not any(spelled(name) == "training loss" for name in table.columns):
        return done
    # TRL's rule about the divergence does not hold: Unsloth always logs it.
    settings = {name: item for name, item in done.settings.items() if name != "kl_weight"}
    note = (
        "a notebook's table leaves out entropy, clip ratios and zero-std fractions: they are in "
        "trainer_state.json"
    )
    return Adjusted(done.table, settings, (*done.notes, note))


UNSLOTH = replace(
    TRL,
    name="Unsloth",
    signature=("training loss", r"(train/)?frac_reward_zero_std_excluded"),
    adjust=adjust,
    console=None,
)
