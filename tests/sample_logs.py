"""A small log in every format that is read, made here: what the tests cut, shuffle and damage."""

import json

import numpy as np

ROWS = 14


def _rows():
    rng = np.random.default_rng(0)
    for k in range(1, ROWS + 1):
        yield k, round(0.1 + 0.03 * k + 0.02 * float(rng.standard_normal()), 4)


REWARDS = [reward for _, reward in _rows()]


def _state():
    rows = [
        {"step": k, "epoch": k / 9, "loss": 0.0, "reward": r, "kl": 0.01, "grad_norm": 0.5}
        for k, r in _rows()
    ]
    return json.dumps({"global_step": ROWS, "max_steps": 90, "log_history": rows}, indent=2)


def _trl_console():
    rows = [{"loss": 0.0, "reward": r, "reward_std": 0.1, "epoch": k / 9} for k, r in _rows()]
    lines = ["Map: 100%|###| 7473/7473 [00:01<00:00, 6000.00 examples/s]"]
    for k, row in enumerate(rows, 1):
        lines += [f" {k}%|#   | {k}/90 [00:10<01:00,  4.65s/it]", repr(row)]
    return "\n".join([*lines, ""])


def _json_lines():
    rows = [{"type": "config", "group_size": 4}]
    for k, r in _rows():
        rows.append({"type": "train", "step": k, "reward": r, "metrics": {"kl": 0.1}})
        rows.append({"type": "eval", "step": k, "reward": 0.5, "text": "sampled " * 40})
    return "".join(json.dumps(row) + "\n" for row in rows)


def _json_list():
    return json.dumps([{"step": k, "mean_reward": r} for k, r in _rows()], indent=1)


def _json_columns():
    steps, rewards = zip(*_rows(), strict=True)
    return json.dumps({"step": steps, "reward": rewards})


def _csv():
    return "step,reward,kl\n" + "".join(f"{k},{r},0.1\n" for k, r in _rows())


def _pairs():
    lines = [f"Epoch:[1/1]({k}/90), Reward: {r}, KL_ref: -0.001, LR: 3e-7" for k, r in _rows()]
    return "\n".join(["loading the model", *lines, ""])


def _verl_console():
    lines = [
        f"\x1b[36m(TaskRunner pid=28)\x1b[0m step:{k} - critic/score/mean:{r} - "
        f"critic/rewards/mean:{r - 1} - actor/entropy:0.4 - training/global_step:{k}"
        for k, r in _rows()
    ]
    return "\n".join(["{'actor_rollout_ref': {'rollout': {'n': 8}},", " 'x': 1}", *lines, ""])


SAMPLES = {
    "trainer_state": _state(),
    "trl console": _trl_console(),
    "json lines": _json_lines(),
    "json list": _json_list(),
    "json columns": _json_columns(),
    "csv": _csv(),
    "pairs": _pairs(),
    "verl console": _verl_console(),
}
