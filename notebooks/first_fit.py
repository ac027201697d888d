# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first fit
#
# A log goes in; where the reward will level off, when, and how sure that is come out. Open this
# file as a notebook with Jupytext (`pip install '.[notebooks]'`), or run it as a script from the
# root of the repository.

# %%
import bayes_grpo as bg

run = bg.read_run("data/gsm8k_like.json", group_size=8, prompts_per_step=8, reward_bounds=(0, 1))
print(run.settings)  # each with where it came from: given, read, inferred, default

# %% [markdown]
# The run was synthetic: its plateau is 0.72 and its relaxation time 90 updates. Both should lie
# inside the 90 % intervals below. `r_hat` near 1 and a large `ess` say that the chains agree.

# %%
f = bg.fit(run, model="oscillator", seed=0)
print(f.summary().to_string())

# %% [markdown]
# The forecast is of logged rows, so its bands hold sampling noise as well; `kind="mean"` leaves it
# out. The learning rate falls to 0 at the planned end, so the reward stops short of its plateau:
# that is not the same as having reached it.

# %%
print(f.forecast().tail())
bg.plot_forecast(f)

# %% [markdown]
# Could this model have produced this log? The bands are of whole new runs with the same posterior.

# %%
bg.plot_ppc(f)

# %%
f.save("out/mine.nc")
