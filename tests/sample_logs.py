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


def _html():
    names = ["Step", "Training Loss", "reward", "reward_std", "completions / mean_length", "kl"]
    names.append("rewards / correctness / mean")
    head = "".join(f"      <th>{name}</th>\n" for name in names)
    rows = "".join(
        "    <tr>\n"
        + "".join(f"      <td>{v}</td>\n" for v in (k, "0.000100", r, 0.1, "120.500000", 0.01, r))
        + "    </tr>\n"
        for k, r in _rows()
    )
    bar = "<progress value='14' max='90'></progress>\n      [14/90 1:30:34, Epoch 0/1]"
    return f"""
    <div>
      {bar}
    </div>
    <table border="1" class="dataframe">
  <thead>
 <tr style="text-align: left;">
{head}    </tr>
  </thead>
  <tbody>
{rows}  </tbody>
</table><p>
"""


def _markdown():
    rows = "".join(f"| {k} | 0.0001 | {r} | 0.1 | 120.5 |\n" for k, r in _rows())
    return f"""### My reward does not move

This is what I see:

| Step | Training Loss | reward | reward_std | completion_length |
|------|:-------------:|-------:|------------|-------------------|
{rows}
What is wrong?
"""


def _notebook():
    code = (
        "args = GRPOConfig(\n    learning_rate = 5e-6,\n    num_generations = 6, # less if OOM\n)"
    )
    output = {"output_type": "display_data", "data": {"text/html": _html().splitlines(True)}}
    cells = [
        {"cell_type": "markdown", "source": ["# GRPO"]},
        {"cell_type": "code", "source": code.splitlines(True), "outputs": []},
        {"cell_type": "code", "source": ["trainer.train()"], "outputs": [output]},
    ]
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def _chart():
    lines = ['"Step","a - b - reward","a - b - reward__MIN","a - b - reward__MAX"']
    lines += [f'"{k}","{r}","{r}","{r}"' for k, r in _rows()]
    return "\n".join(lines) + "\n"


HTML, MARKDOWN, NOTEBOOK = _html(), _markdown(), _notebook()

SAMPLES = {
    "trainer_state": _state(),
    "trl console": _trl_console(),
    "json lines": _json_lines(),
    "json list": _json_list(),
    "json columns": _json_columns(),
    "csv": _csv(),
    "pairs": _pairs(),
    "verl console": _verl_console(),
    "html": HTML,
    "markdown": MARKDOWN,
    "notebook": NOTEBOOK,
    "chart": _chart(),
}
