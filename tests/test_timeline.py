"""Which tick each row lands on, and how the learning rate goes on, worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayes_grpo import timeline as timeline_module
from bayes_grpo.errors import InputError
from bayes_grpo.run import Run
from bayes_grpo.schedule import constant_schedule, read_schedule
from bayes_grpo.timeline import bucket, build_timeline, future_ticks, pad_ticks


def no_responses(rates):
    return {}


def run_at(steps, reward=None, *, columns=None, **settings):
    steps = np.asarray(steps)
    reward = np.linspace(0.1, 0.7, len(steps)) if reward is None else reward
    return Run.from_table(
        pd.DataFrame({"step": steps, "reward": reward, **(columns or {})}), **settings
    )


def laid_out(steps, reward=None, *, horizon=None, one_update_ticks=False, **more):
    run = run_at(steps, reward, **more)
    return build_timeline(run, no_responses, horizon=horizon, one_update_ticks=one_update_ticks)


def rows_of(timeline):
    """First and last tick of each row, read off the ticks alone: where ``keep`` starts anew."""
    ticks = timeline.ticks
    spans = []
    for last in np.flatnonzero(ticks.observed):
        first = last
        while ticks.keep[first]:
            first -= 1
        np.testing.assert_allclose(ticks.share[first : last + 1], 1 / (last - first + 1))
        spans.append((int(first), int(last)))
    return spans


# --- rows ----------------------------------------------------------------------------------------


def test_a_row_for_each_update():
    timeline = laid_out(range(1, 6), [0.1, 0.4, 0.2, 0.5, 0.3])
    assert not timeline.windowed
    assert rows_of(timeline) == [(t, t) for t in range(5)]
    np.testing.assert_array_equal(timeline.ticks.reward, [0.1, 0.4, 0.2, 0.5, 0.3])
    np.testing.assert_array_equal(timeline.ticks.observed, 1)
    np.testing.assert_array_equal(timeline.ticks.row_variance, 1)
    np.testing.assert_array_equal(timeline.rows, range(5))
    np.testing.assert_array_equal(timeline.row_updates, range(1, 6))


def test_windows_of_a_logger_every_ten_steps():
    """TRL with logging_steps=10: a row is the mean of the ten batches since the row before."""
    timeline = laid_out([10, 20, 30], row_average="window")
    assert timeline.windowed
    assert rows_of(timeline) == [(0, 9), (10, 19), (20, 29)]
    np.testing.assert_array_equal(timeline.row_tick, [9, 19, 29])
    np.testing.assert_array_equal(timeline.row_updates, [10, 20, 30])
    np.testing.assert_allclose(timeline.ticks.row_variance[timeline.row_tick], 0.1)
    assert len(timeline.ticks.reward) == 30


def test_windows_of_reused_batches():
    """Four updates a batch, a row every eight updates: two batches a row."""
    timeline = laid_out([8, 16, 24], row_average="window", refresh_interval=4)
    assert timeline.updates_per_tick == 4
    assert rows_of(timeline) == [(0, 1), (2, 3), (4, 5)]
    np.testing.assert_allclose(timeline.ticks.row_variance[timeline.row_tick], 0.5)


def test_windows_that_the_refreshes_do_not_divide():
    """A batch belongs to the window in which it was made: before updates 1, 5, 9, 13, 17."""
    timeline = laid_out([6, 12, 18], row_average="window", refresh_interval=4)
    assert rows_of(timeline) == [(0, 1), (2, 2), (3, 4)]


def test_single_rows_with_spacing_see_one_batch():
    timeline = laid_out([10, 20, 30])
    assert not timeline.windowed
    assert rows_of(timeline) == [(9, 9), (19, 19), (29, 29)]
    np.testing.assert_array_equal(timeline.ticks.row_variance, 1)
    assert timeline.ticks.observed.sum() == 3


def test_single_rows_see_the_batch_in_use():
    """Four updates a batch: update 10 works on the third batch, update 12 too, 13 on the fourth."""
    for done in ([10, 13], [12, 13], [9, 16]):
        columns = {"updates": [done[0], done[1] - done[0]]}
        assert rows_of(laid_out(done, columns=columns, refresh_interval=4)) == [(2, 2), (3, 3)]


def test_a_step_that_is_one_batch_of_many_updates():
    """verl: a step is a rollout batch, used for updates_per_step updates."""
    timeline = laid_out(range(1, 6), updates_per_step=4, refresh_interval=4, max_steps=20)
    assert timeline.updates_per_tick == 4
    assert rows_of(timeline) == [(t, t) for t in range(5)]
    np.testing.assert_array_equal(timeline.row_updates, [4, 8, 12, 16, 20])
    assert timeline.scale.planned_updates == 80
    assert timeline.scale.row_updates == 4
    np.testing.assert_allclose(timeline.ticks.root_time**2, 4 / 80)


def test_rows_between_refreshes_are_averaged():
    reward = np.array([0.1, 0.2, 0.6, 0.7, 0.3, 0.5, 0.4])
    timeline = laid_out(range(1, 8), reward, refresh_interval=4)
    assert rows_of(timeline) == [(0, 0), (1, 1)]
    np.testing.assert_allclose(timeline.ticks.reward, [reward[:4].mean(), reward[4:].mean()])
    np.testing.assert_array_equal(timeline.rows, [3, 6])  # the last row of each batch
    np.testing.assert_array_equal(timeline.row_updates, [4, 7])
    assert any("5 rows share a rollout batch" in note for note in timeline.notes)


def test_rows_of_one_batch_count_by_their_generations():
    timeline = laid_out(
        range(1, 5), [0.0, 1.0, 0.5, 0.6], columns={"generations": [3, 1, 2, 2]}, refresh_interval=2
    )
    np.testing.assert_allclose(timeline.ticks.reward, [0.25, 0.55])
    np.testing.assert_allclose(timeline.ticks.row_variance, [0.25, 0.25])


def test_the_table_of_the_run_is_left_alone():
    run = run_at(range(1, 9), refresh_interval=4)
    before = run.table.copy()
    build_timeline(run, no_responses)
    pd.testing.assert_frame_equal(run.table, before)


def test_a_window_whose_batch_a_later_row_repeats_stays_a_window():
    """Row 6 averages the batches before updates 3 and 5; row 7 repeats the last one."""
    timeline = laid_out([1, 2, 6, 7], row_average="window", refresh_interval=2, momentum=0.0)
    assert rows_of(timeline) == [(0, 0), (1, 2), (3, 3)]
    assert timeline.windowed
    timeline = laid_out([1, 2, 7, 8], row_average="window", refresh_interval=2)
    assert rows_of(timeline) == [(0, 0), (1, 3)]
    assert timeline.windowed


def test_missing_rewards_leave_the_clock_alone():
    reward = np.array([0.1, np.nan, 0.3, np.nan, np.nan, 0.6])
    single = laid_out(range(1, 7), reward)
    assert rows_of(single) == [(0, 0), (2, 2), (5, 5)]
    np.testing.assert_array_equal(single.rows, [0, 2, 5])
    windows = laid_out([5, 10, 15, 20], [0.1, np.nan, 0.3, 0.4], row_average="window")
    # The batches of the row without a reward belong to nobody.
    assert rows_of(windows) == [(0, 4), (10, 14), (15, 19)]
    assert np.all(np.isfinite(windows.ticks.reward))


def test_a_log_that_starts_late_starts_its_own_clock():
    timeline = laid_out([3000, 3010, 3020], max_steps=4000)
    assert rows_of(timeline) == [(9, 9), (19, 19), (29, 29)]
    assert timeline.planned_step == 4000
    assert timeline.scale.planned_updates == 30 + 980


def test_a_counter_from_zero():
    assert rows_of(laid_out([0, 1, 2])) == [(0, 0), (1, 1), (2, 2)]


def test_rows_between_refreshes_lie_a_refresh_apart():
    """What bounds a time scale by the rows must not let it fall below a tick."""
    assert laid_out(range(1, 17), refresh_interval=8).scale.row_updates == 8
    assert laid_out(range(8, 65, 8), refresh_interval=4).scale.row_updates == 8


def test_a_tick_for_each_update():
    timeline = laid_out([4, 8, 12], row_average="window", lag=3, one_update_ticks=True)
    assert timeline.updates_per_tick == 1
    assert rows_of(timeline) == [(0, 3), (4, 7), (8, 11)]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=20), st.integers(1, 6))
def test_windows_never_overlap_and_miss_no_batch(gaps, refresh):
    timeline = laid_out(np.cumsum(gaps), row_average="window", refresh_interval=refresh)
    spans = rows_of(timeline)
    covered = [tick for first, last in spans for tick in range(first, last + 1)]
    assert covered == list(range(len(timeline.ticks.reward)))


@given(st.integers(2, 30), st.integers(1, 5), st.integers(1, 5))
def test_drift_adds_up_to_the_planned_length(count, refresh, stretch):
    """The plateau's steps have variance 1 in all over the planned length of the run."""
    last = count * refresh
    timeline = laid_out(
        range(refresh, last + 1, refresh), refresh_interval=refresh, max_steps=stretch * last
    )
    assert (timeline.ticks.root_time**2).sum() == pytest.approx(1 / stretch)


def test_scale():
    reward = np.array([0.1, 0.5, np.nan, 0.2, 0.9])
    scale = laid_out([2, 4, 6, 9, 12], reward, max_steps=100).scale
    assert scale.location == pytest.approx(0.35)
    assert scale.scale == pytest.approx(np.std([0.1, 0.5, 0.2, 0.9]))
    assert scale.row_updates == 2.5
    assert scale.planned_updates == 100


# --- planned length ------------------------------------------------------------------------------


def test_horizon():
    steps = [10, 20, 30]
    assert laid_out(steps).planned_step == 60
    assert any("step 60" in note for note in laid_out(steps).notes)
    assert laid_out(steps, max_steps=200).planned_step == 200
    assert laid_out(steps, max_steps=200, horizon=90).planned_step == 90
    assert laid_out(steps, horizon=30).planned_step == 30
    with pytest.raises(InputError, match=r"'run'.*horizon is 29.*step 30"):
        laid_out(steps, horizon=29)


# --- very long logs ------------------------------------------------------------------------------


def test_more_ticks_than_rows_need_are_merged(monkeypatch):
    monkeypatch.setattr(timeline_module, "MAX_TICKS", 100)
    timeline = laid_out([1000, 2000, 4000], refresh_interval=4)
    assert timeline.updates_per_tick == 40
    assert len(timeline.ticks.reward) == 100
    assert rows_of(timeline) == [(24, 24), (49, 49), (99, 99)]
    assert any("40 updates are taken as one" in note for note in timeline.notes)
    assert laid_out(range(1, 4001), refresh_interval=1).updates_per_tick == 1  # all rows are there


def test_updates_are_not_merged_where_each_matters(monkeypatch):
    """A lag is counted in updates: merged ticks would stand for another lag and another pull."""
    monkeypatch.setattr(timeline_module, "MAX_TICKS", 100)

    def lagging(last):
        updates = [500, 500, last - 1000]
        return laid_out(
            [500, 1000, last], columns={"updates": updates}, lag=2, one_update_ticks=True
        )

    timeline = lagging(2000)
    assert timeline.updates_per_tick == 1
    assert len(timeline.ticks.reward) == 2000
    with pytest.raises(InputError, match=r"'run'.*2001 updates.*at most 2000.*lag_pattern='hold'"):
        lagging(2001)


# --- learning rate -------------------------------------------------------------------------------


def test_constant_schedule():
    at = np.array([0, 1, 50, 10_000])
    np.testing.assert_array_equal(constant_schedule("").at(at), 1)
    logged = read_schedule(np.array([1, 2, 3]), np.full(3, 2e-6), 2e-6)
    np.testing.assert_array_equal(logged.at(at), 1)
    empty = read_schedule(np.array([1, 2, 3]), np.full(3, np.nan), 1.0)
    np.testing.assert_array_equal(empty.at(at), 1)


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("logged", [120, 190])
def test_warmup_and_linear_decay_go_on_to_zero_at_the_right_update(every, logged):
    peak, warmup, end = 3e-6, 20, 200

    def rate(u):
        return peak * np.where(u <= warmup, u / warmup, (end - u) / (end - warmup))

    updates = np.arange(every, logged + 1, every)
    schedule = read_schedule(updates, rate(updates), peak)
    future = np.arange(every, 300)
    expected = np.clip(rate(future) / peak, 0, None)
    np.testing.assert_allclose(schedule.at(future), expected, atol=1e-9)
    assert schedule.at(np.array([end - 1]))[0] > 0
    assert schedule.at(np.array([end]))[0] == pytest.approx(0, abs=1e-9)
    assert f"update {end}" in schedule.why


def test_rates_between_logged_rows_are_interpolated_and_gaps_skipped():
    schedule = read_schedule(np.array([10, 20, 30]), np.array([1.0, np.nan, 0.5]), 1.0)
    np.testing.assert_allclose(schedule.at(np.array([1, 10, 15, 20, 30])), [1, 1, 0.875, 0.75, 0.5])


def test_cosine_is_held():
    updates = np.arange(1, 181)
    rate = 0.5 * (1 + np.cos(np.pi * updates / 200))
    schedule = read_schedule(updates, rate, 1.0)
    np.testing.assert_allclose(schedule.at(updates), rate)
    assert schedule.slope == 0
    np.testing.assert_allclose(schedule.at(np.array([181, 500])), rate[-1])


def test_rising_rates_are_held():
    updates = np.arange(1, 31)
    schedule = read_schedule(updates, updates / 100, 1.0)
    np.testing.assert_allclose(schedule.at(np.array([30, 31, 90])), 0.3)


@given(
    st.floats(-0.02, 0.02), st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(1, 1e4)
)
def test_the_rate_never_goes_below_zero(noise, rates, peak):
    updates = np.arange(1, len(rates) + 1) * 7
    wobble = noise * np.sin(np.arange(len(rates)))
    schedule = read_schedule(updates, np.clip(np.array(rates) + wobble, 0, None), peak)
    assert np.all(schedule.at(np.arange(0, 5000, 3)) >= 0)


def test_ticks_average_their_updates():
    rate = 1 - np.arange(8) / 8
    timeline = laid_out(
        range(1, 9), columns={"learning_rate": 2e-6 * rate}, refresh_interval=4, updates_per_step=1
    )
    np.testing.assert_allclose(timeline.ticks.learning_rate, [rate[:4].mean(), rate[4:].mean()])


def test_a_peak_given_by_hand_does_not_change_the_shape():
    columns = {"learning_rate": [1e-6, 2e-6, 1e-6]}
    by_hand = laid_out([1, 2, 3], columns=columns, learning_rate=8e-6)
    read = laid_out([1, 2, 3], columns=columns)
    np.testing.assert_array_equal(by_hand.ticks.learning_rate, read.ticks.learning_rate)
    np.testing.assert_allclose(read.ticks.learning_rate, [0.5, 1, 0.5])


def test_responses_get_the_rates_of_the_updates():
    seen = []

    def responses(rates):
        seen.append(rates)
        return {"seen": rates[:, -1]}

    rate = 1 - np.arange(8) / 8
    run = run_at(range(1, 9), columns={"learning_rate": rate}, refresh_interval=4)
    timeline = build_timeline(run, responses)
    np.testing.assert_allclose(seen[0], rate.reshape(2, 4))
    np.testing.assert_allclose(timeline.ticks.response["seen"], rate[[3, 7]])


# --- the time after the log ----------------------------------------------------------------------


@pytest.mark.parametrize("refresh", [1, 4])
def test_future_ticks_go_on_where_the_log_ends(refresh):
    """Together with the logged part they are the clock of the whole run."""
    steps = np.arange(1, 13) * refresh
    rate = np.clip(1 - steps / (30 * refresh), 0, None)
    more = {"refresh_interval": refresh, "max_steps": 40 * refresh}
    logged = build_timeline(run_at(steps, columns={"learning_rate": rate}, **more), no_responses)
    asked = refresh * np.array([13, 14, 20, 40])
    future, first, last = future_ticks(logged, no_responses, asked, refresh, 1.0)
    assert len(logged.ticks.reward) == 12
    np.testing.assert_array_equal(last, [0, 1, 7, 27])  # tick 12 + 0 is the 13th batch
    np.testing.assert_array_equal(first, last)
    assert len(future.reward) == 28
    np.testing.assert_allclose(future.root_time, np.sqrt(1 / 40))
    peak = rate.max()
    updates = np.arange(1, 40 * refresh + 1)
    held_before = np.maximum(updates, steps[0])  # nothing is known before the first row
    exact = np.clip(1 - held_before / (30 * refresh), 0, None) / peak
    together = np.concatenate([logged.ticks.learning_rate, future.learning_rate])
    np.testing.assert_allclose(together, exact.reshape(40, refresh).mean(axis=1), atol=1e-12)
    np.testing.assert_array_equal(future.observed, 0)


def test_future_windows():
    logged = laid_out([10, 20, 30], row_average="window", max_steps=100)
    future, first, last = future_ticks(logged, no_responses, np.array([40, 50, 60]), 10, 10.0)
    np.testing.assert_array_equal(first, [0, 10, 20])
    np.testing.assert_array_equal(last, [9, 19, 29])
    np.testing.assert_allclose(future.row_variance, 0.1)
    _, first, last = future_ticks(logged, no_responses, np.array([40, 50, 60]), 1, 1.0)
    np.testing.assert_array_equal(first, [9, 19, 29])
    np.testing.assert_array_equal(last, [9, 19, 29])


def test_a_log_that_ends_within_a_batch():
    """Six updates of batches of four: the second batch is in use until update 8."""
    logged = laid_out([2, 4, 6], refresh_interval=4, max_steps=20)
    assert len(logged.ticks.reward) == 2
    _, first, last = future_ticks(logged, no_responses, np.array([10, 12, 13]), 1, 1.0)
    np.testing.assert_array_equal(last, [0, 0, 1])
    np.testing.assert_array_equal(first, last)


# --- padding -------------------------------------------------------------------------------------


@given(st.integers(1, 200_000))
def test_bucket(count):
    size = bucket(count)
    assert max(64, count) <= size <= max(64, 1.5 * count)
    assert bucket(count + 1) >= size
    assert bucket(size) == size
    assert size & (size - 1) == 0 or (size % 3 == 0 and (size // 3) & (size // 3 - 1) == 0)


def test_buckets():
    assert [bucket(n) for n in (1, 64, 65, 96, 97, 129, 193, 257)] == [
        64,
        64,
        96,
        96,
        128,
        192,
        256,
        384,
    ]


def test_padding_comes_first_and_moves_nothing():
    run = run_at([3, 6, 9], row_average="window")
    ticks = build_timeline(run, lambda rates: {"push": rates[:, 0]}).ticks
    padded = pad_ticks(ticks, 16)
    for before, after in zip(ticks[:-1], padded[:-1], strict=True):
        assert after.shape == (16,)
        np.testing.assert_array_equal(after[7:], before)
    np.testing.assert_array_equal(padded.response["push"][7:], ticks.response["push"])
    for idle in (padded.learning_rate, padded.root_time, padded.observed, padded.response["push"]):
        np.testing.assert_array_equal(idle[:7], 0)
    assert np.all(padded.row_variance > 0)
