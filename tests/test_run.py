"""`Settings` and `Run`: what is checked, what is derived, what is said."""

import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest

from bayes_grpo import InputError, Run, Settings
from bayes_grpo.settings import Setting


def frame(n=6, **columns):
    table = pd.DataFrame({"step": np.arange(1, n + 1), "reward": np.linspace(0.1, 0.6, n)})
    return table.assign(**columns)


def refused(match, table, **settings):
    with pytest.raises(InputError, match=match) as caught:
        Run.from_table(table, "mine", **settings)
    assert "\n" not in str(caught.value)
    assert "mine" in str(caught.value)


# --- Settings -----------------------------------------------------------------------------------


def test_defaults_say_that_they_are():
    settings = Settings()
    assert settings.group_size == 8
    assert settings["group_size"] == Setting(8, "default", "not in the log: TRL's default")
    assert settings.momentum == 0.9
    assert settings.learning_rate == 1.0
    assert settings.max_steps is None
    assert set(settings) == set(Settings.names()) == set(settings.to_frame().index)


def test_given_wins_over_read_and_read_over_default():
    read = {"group_size": Setting(4, "read", "column"), "lag": Setting(1, "inferred", "guess")}
    settings = Settings({"group_size": 16}, read)
    assert settings["group_size"].provenance == "given"
    assert settings.group_size == 16
    assert settings["lag"].provenance == "inferred"
    changed = settings.replace(momentum=0.95)
    assert (changed.momentum, changed["lag"].provenance) == (0.95, "inferred")
    assert settings.momentum == 0.9


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_size", 0),
        ("group_size", 2.5),
        ("group_size", "8"),
        ("group_size", True),
        ("group_size", None),
        ("prompts_per_step", -1),
        ("momentum", 1),
        ("momentum", -0.1),
        ("momentum", float("nan")),
        ("momentum_convention", "nesterov"),
        ("learning_rate", 0),
        ("learning_rate", float("inf")),
        ("refresh_interval", 0),
        ("lag_pattern", ["hold"]),
        ("lag", -1),
        ("updates_per_step", 0.5),
        ("row_average", "mean"),
        ("max_steps", 0),
        ("reward_bounds", (1, 0)),
        ("reward_bounds", 1.0),
        ("reward_bounds", "01"),
        ("reward_bounds", (0, 1, 2)),
        ("kl_weight", -0.1),
    ],
)
def test_invalid_values_are_refused_by_name(name, value):
    with pytest.raises(InputError, match=f"setting {name} is .*: expected"):
        Settings({name: value})


def test_numpy_numbers_become_plain_ones():
    settings = Settings({"group_size": np.int64(4), "reward_bounds": np.array([0, 2])})
    assert type(settings.group_size) is int
    assert settings.reward_bounds == (0.0, 2.0)


def test_unknown_names_are_met_with_the_near_one():
    with pytest.raises(InputError, match=r"no setting 'groupsize', did you mean 'group_size'\?"):
        Settings({"groupsize": 8})
    with pytest.raises(InputError, match=r"Settings are: group_size, .*kl_weight"):
        Settings({"zzz": 8})
    with pytest.raises(AttributeError, match="did you mean 'momentum'"):
        _ = Settings().momentun
    with pytest.raises(KeyError, match="did you mean 'momentum'"):
        Settings()["momentun"]


def test_a_lag_without_a_pattern_means_a_constant_one():
    settings = Settings({"lag": 4})
    assert settings["lag_pattern"] == Setting("constant", "inferred", "a lag was set")
    assert Settings({"lag": 4, "lag_pattern": "hold"}).lag_pattern == "hold"


def test_settings_do_not_change_and_travel():
    settings = Settings({"reward_bounds": (0, 1), "kl_weight": 0.04})
    with pytest.raises(AttributeError, match="replace"):
        settings.momentum = 0.5
    again = Settings.from_json(settings.to_json())
    assert again == settings
    assert hash(again) == hash(settings)
    assert again.reward_bounds == (0.0, 1.0)
    assert pickle.loads(pickle.dumps(settings)) == copy.deepcopy(settings) == settings
    with pytest.raises(InputError, match="stored settings"):
        Settings.from_json("[1]")


def test_settings_print_value_provenance_and_reason():
    text = repr(Settings({"group_size": 4}))
    assert "group_size           4       given    set by hand" in text
    html = Settings()._repr_html_()
    assert "<th>momentum</th><td>0.9</td><td>default</td>" in html
    assert "Adam&#x27;s beta1" in html


# --- Run: what is refused -----------------------------------------------------------------------


def test_no_reward_names_the_look_alike():
    table = frame().rename(columns={"reward": "mean_reward"})
    refused("no column 'reward' .*found: step, mean_reward.*'mean_reward' looks like it", table)
    refused("no column 'reward' .*rename yours", pd.DataFrame({"step": [1, 2], "x": [1, 2]}))
    refused("no column 'reward' .*none", pd.DataFrame())


@pytest.mark.parametrize(
    ("rewards", "match"),
    [
        ([np.nan] * 4, "column 'reward' is empty in every row"),
        ([0.1, np.nan, np.nan, np.nan], "only 1 row has a reward"),
        ([0.5] * 4, "the reward is 0.5 in all of the 4 rows"),
        ([0.1, 0.2, np.inf, 0.3], "row 3, column 'reward': found inf, expected a finite number"),
        ([0.1, -1e300, 0.1, 0.3], "row 2, column 'reward': found -1e\\+300, expected a finite"),
        ([0.1, 0.2, "oops", 0.3], "row 3, column 'reward': found 'oops', expected a number"),
        ([0.1, 0.2, 0.3, [0.1]], r"row 4, column 'reward': found \[0.1\], expected a number"),
    ],
)
def test_unusable_rewards(rewards, match):
    refused(match, pd.DataFrame({"step": [1, 2, 3, 4], "reward": rewards}))


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([1, 2, 3, 1], "row 4, column 'step': the step runs back from 3 to 1.*resumed or concat"),
        ([1, 2, np.nan, 4], "row 3, column 'step': found nan, expected a number"),
        ([1, 2, np.inf, 4], "row 3, column 'step': found inf"),
        ([0.25, 0.5, 0.75, 1], "row 1, column 'step': found 0.25, expected a whole number"),
        ([-1, 0, 1, 2], "row 1, column 'step': found -1, expected 0 or more"),
        ([1, 2, 3, 1e300], "row 4, column 'step': found 1e\\+300, expected a step counter"),
        ([3, 3, 3, 3], "only 1 row has a reward"),
    ],
)
def test_unusable_steps(steps, match):
    refused(match, pd.DataFrame({"step": steps, "reward": [0.1, 0.2, 0.3, 0.4]}))


def test_unusable_companions():
    refused("row 2, column 'learning_rate': found -1", frame(3, learning_rate=[1, -1, 1]))
    refused("row 1, column 'zero_std_fraction': found 1.5", frame(3, zero_std_fraction=1.5))
    refused("row 1, column 'kl': found 'high', expected a number", frame(3, kl="high"))
    refused("step 1, column 'updates': found 0.5", frame(3, updates=0.5))
    refused("'updates' rises in every row like a counter", frame(6, updates=range(1, 7)))
    refused("column 'generations': found 0 for a row with a reward", frame(3, generations=0))
    refused("found list, expected a pandas DataFrame", [1, 2])
    refused("table has no rows", frame(0))
    doubled = pd.DataFrame([[1, 0.1, 0.2], [2, 0.2, 0.3]], columns=["step", "reward", "reward"])
    refused("two columns are called 'reward'", doubled)


def test_settings_that_contradict_the_log():
    refused("setting group_size is 0", frame(), group_size=0)
    refused("setting max_steps is 5, but the log goes to step 6", frame(), max_steps=5)
    refused(
        r"step 6, column 'reward': found 0.6, outside the reward_bounds",
        frame(),
        reward_bounds=(0, 0.5),
    )
    run = Run.from_table(frame(), read={"max_steps": Setting(5, "read", "log")})
    assert run.settings.max_steps is None
    assert any("max_steps 5 in the log is below" in note for note in run.notes)


# --- Run: what is made of a table ---------------------------------------------------------------


def test_table_is_copied_ordered_and_numeric():
    source = pd.DataFrame(
        {
            "note": ["a", "b", "c"],
            "mine": ["1", "2", None],
            "reward": ["0.1", "nan", "np.float64(0.3)"],
            "lr": ["1e-6", "2e-6", ""],
            "step": ["1", "2", "3"],
            "empty": [None, None, None],
            "flag": [True, False, True],
        },
        index=[7, 7, 9],
    )
    run = Run.from_table(source, name="mine")
    assert [*run.table] == [
        "step", "reward", "learning_rate", "mine", "flag", "updates", "generations",
    ]  # fmt: skip
    assert run.table["step"].dtype == run.table["updates"].dtype == np.int64
    assert run.table["reward"].tolist()[::2] == [0.1, 0.3]
    assert np.isnan(run.table["reward"][1])
    assert run.settings["learning_rate"] == Setting(
        2e-6, "read", "largest learning_rate in the log"
    )
    assert "columns without numbers left out: note" in run.notes
    source.loc[:, "reward"] = "9"
    assert run.table["reward"][0] == 0.1


def test_missing_steps_are_numbered_and_said():
    run = Run.from_table(frame()[["reward"]])
    assert run.table["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.notes == ("no step column: the rows were numbered 1 to 6",)


def test_trainer_names_of_companions_are_known():
    run = Run.from_table(frame(3, frac_reward_zero_std=0.5, **{"clip_ratio/region_mean": 0.1}))
    assert {"zero_std_fraction", "clip_fraction"} <= set(run.table)


def test_rows_that_share_a_step_are_micro_batches():
    table = pd.DataFrame(
        {"step": [0, 0, 1, 1, 2, 2], "reward": [0, 1, 1, np.nan, np.nan, np.nan], "kl": range(6)}
    )
    run = Run.from_table(table)
    assert run.table["reward"].tolist()[:2] == [0.5, 1]
    assert run.table["kl"].tolist() == [0.5, 2.5, 4.5]
    assert run.table["generations"].tolist() == [2, 1, 0]
    assert run.table["updates"].tolist() == [1, 1, 1]
    assert "6 rows have 3 different steps" in run.notes[0]


def test_dead_learning_rate_is_not_a_schedule():
    run = Run.from_table(frame(learning_rate=0.0))
    assert "learning_rate" not in run.table
    assert run.settings["learning_rate"].provenance == "default"
    assert "rounded by the logger" in run.notes[0]


def test_learning_rate_by_hand_wins():
    run = Run.from_table(frame(learning_rate=1e-6), learning_rate=2e-6)
    assert run.settings["learning_rate"].provenance == "given"
    assert run.table["learning_rate"].max() == 1e-6


@pytest.mark.parametrize(
    ("steps", "settings", "updates", "generations"),
    [
        ([1, 2, 3], {}, [1, 1, 1], [1, 1, 1]),
        ([0, 1, 2], {}, [1, 1, 1], [1, 1, 1]),
        ([5, 10, 15], {}, [5, 5, 5], [1, 1, 1]),
        ([5, 10, 15], {"row_average": "window"}, [5, 5, 5], [5, 5, 5]),
        # logging_first_step: the first window holds one step.
        ([1, 10, 20, 30], {"row_average": "window"}, [1, 9, 10, 10], [1, 9, 10, 10]),
        # The beginning of the log is cut off.
        ([3000, 3010, 3020], {"row_average": "window"}, [10, 10, 10], [10, 10, 10]),
        ([0, 10, 20], {"row_average": "window"}, [1, 10, 10], [1, 10, 10]),
        # Four updates use one batch of rollouts.
        ([8, 16, 24], {"row_average": "window", "refresh_interval": 4}, [8] * 3, [2] * 3),
        ([1, 2, 3], {"row_average": "window", "refresh_interval": 4}, [1] * 3, [1] * 3),
        ([1, 2, 3], {"updates_per_step": 4, "refresh_interval": 4}, [4] * 3, [1] * 3),
        ([1, 2, 7], {"row_average": "window"}, [1, 1, 5], [1, 1, 5]),
    ],
)
def test_updates_and_generations(steps, settings, updates, generations):
    table = pd.DataFrame({"step": steps, "reward": np.linspace(0, 1, len(steps))})
    run = Run.from_table(table, **settings)
    assert run.table["updates"].tolist() == updates
    assert run.table["generations"].tolist() == generations


def test_rows_without_reward_take_time_but_average_nothing():
    table = pd.DataFrame({"step": range(1, 6), "reward": [0.1, np.nan, 0.2, np.nan, 0.3]})
    run = Run.from_table(table, refresh_interval=2, row_average="window")
    assert run.table["updates"].tolist() == [1, 1, 1, 1, 1]
    assert run.table["generations"].tolist() == [1, 0, 1, 0, 1]


def test_counts_given_in_the_table_win():
    run = Run.from_table(frame(3, updates=[4, 4, 4], generations=[2, 2, 1]), row_average="window")
    assert run.table["updates"].tolist() == [4, 4, 4]
    assert run.table["generations"].tolist() == [2, 2, 1]


def test_wide_spacing_is_pointed_out_unless_settled():
    table = frame(step=np.arange(10, 61, 10))
    assert "pass row_average='window'" in Run.from_table(table).notes[0]
    assert not Run.from_table(table, row_average="single").notes


def test_prefixes_keep_settings_and_counts():
    run = Run.from_table(frame(step=[5, 10, 15, 20, 25, 30]), max_steps=60, row_average="window")
    assert len(run.head(3)) == len(run.until(17)) == 3
    assert run.head(3).settings == run.settings
    assert run.until(15).table["updates"].tolist() == [5, 5, 5]
    assert len(run.head(99)) == 6
    with pytest.raises(InputError, match="its first 1 rows: only 1 row has a reward"):
        run.head(1)
    with pytest.raises(InputError, match="its first 0 rows"):
        run.until(0)
    with pytest.raises(InputError, match="at least 1 row"):
        run.head(-1)


def test_a_run_prints_itself():
    run = Run.from_table(frame()[["reward"]], name="<mine>", group_size=4)
    text = repr(run)
    assert "Run '<mine>': 6 rows, steps 1 to 6, reward 0.1 to 0.6" in text
    assert "group_size=4" in text
    assert "note: no step column" in text
    html = run._repr_html_()
    assert "&lt;mine&gt;" in html
    assert "<li>no step column" in html


@pytest.mark.parametrize(
    ("rewards", "bounds"),
    [
        ([0, 0, 0, 0.25, 0.5], (0.0, math.inf)),
        ([0.5, 1, 1, 0.75, 1], (-math.inf, 1.0)),
        ([0, 1, 0, 1, 0, 1], (0.0, 1.0)),
        ([0, 0, 0.25, 1, 1], None),  # hit twice only
        ([0, 0, 0, -0.25, 0.5], None),
        ([1, 1, 1, 1.5, 0.5], None),
        ([2, 2, 2, 1.5, 0.5], None),  # a coarse grid repeats its largest value without a bound
    ],
)
def test_a_bound_that_is_hit_again_and_again_is_inferred(rewards, bounds):
    run = Run.from_table(pd.DataFrame({"step": range(1, len(rewards) + 1), "reward": rewards}))
    assert run.settings.reward_bounds == bounds
    assert run.settings["reward_bounds"].provenance == ("default" if bounds is None else "inferred")


def test_a_prefix_does_not_know_the_bounds_that_later_rows_gave_away():
    run = Run.from_table(pd.DataFrame({"step": range(1, 8), "reward": [0.2, 0.5, 0, 0, 0, 0, 0.1]}))
    assert run.settings.reward_bounds == (0.0, math.inf)
    assert run.head(4).settings.reward_bounds is None
    declared = Run.from_table(run.table, reward_bounds=(0, 1))
    assert declared.head(4).settings.reward_bounds == (0.0, 1.0)
