"""Records with the names of trainers and whatever values are read, or refused in one line."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayes_grpo import InputError, read_run
from bayes_grpo.readers import TRAINERS

NAMES = {
    "slime": [
        "rollout/step", "rollout/raw_reward", "rollout/rewards", "rollout/zero_std/count_0",
        "rollout/response_len/mean", "train/step", "train/grad_norm", "train/lr-pg_0",
        "eval/step", "eval/aime",
    ],
    "AReaL": [
        "_step", "ppo_actor/task_reward/avg", "ppo_actor/kl_rewards/avg", "ppo_actor/seq_len/avg",
        "ppo_actor/prompt_len/avg", "rollout/reward", "eval-rollout/reward",
    ],
    "prime-rl": [
        "step", "train/agg/all/a/reward/mean", "train/agg/effective/a/reward/mean", "reward/mean",
        "batch/solve_none", "batch/solve_all", "off_policy/mean", "optim/lr", "eval/x/avg@4",
        "train/agg/all/a/solved_none", "train/agg/all/a/solved_all", "async_level",
    ],
    "open-instruct": [
        "training_step", "scores", "real_batch_size_ratio", "objective/kl_avg", "eval/scores",
        "val/sequence_lengths",
    ],
    "ms-swift": [
        "global_step/max_steps", "reward", "loss", "eval_reward", "eval_loss", "train_runtime",
        "train_speed(s/it)",
    ],
}  # fmt: skip

huge = st.sampled_from([1e16, 9e307, -1e300, "3/9", "0/0", "x/y", "nan"])
cells = st.none() | huge | st.booleans() | st.integers(-3, 6) | st.floats() | st.text(max_size=3)
values = cells | st.lists(cells, max_size=2) | st.dictionaries(st.text(max_size=2), cells)


def test_every_trainer_recognises_its_names():
    for name, keys in NAMES.items():
        trainer = next(trainer for trainer in TRAINERS if trainer.name == name)
        assert trainer.recognises(keys)
        others = [t.name for t in TRAINERS if t.recognises(keys)]
        assert others[0] == name


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_strange_records(tmp_path, name, data):
    record = st.dictionaries(st.sampled_from(NAMES[name]), values, max_size=6)
    rows = data.draw(st.lists(record, min_size=1, max_size=8))
    path = tmp_path / "a"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            run = read_run(path)
        except InputError as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
        else:
            assert np.isfinite(run.table["reward"].dropna()).all()
            assert (run.table["step"].diff().dropna() > 0).all()
