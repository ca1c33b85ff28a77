# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Evaluate and compare
#
# One network has many accuracies, and two objectives have many differences, one for each seed. This notebook
# measures a run under several protocols, and compares two objectives over four seeds so that the answer may
# also be "no difference was found".

# %%
import os
import tempfile

import matplotlib.pyplot as plt

from ssl_vision.compare.comparison import compare
from ssl_vision.compare.metric_selector import MetricSelector
from ssl_vision.main import main
from ssl_vision.runs.registry import Run, find_runs

os.chdir(tempfile.mkdtemp())
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)


def run(command: str) -> None:
    """What `ssl-vision` and this command do in a terminal, without progress bars."""
    if main([*command.split(), "--quiet"]):
        raise RuntimeError(command)


# %% [markdown]
# ## Two objectives, four seeds
#
# Runs of one seed have the same initial weights, the same batches and the same views whatever the objective.
# So they are pairs, and the luck of a seed cancels in their difference.

# %%
SEEDS = range(4)
for objective in ("InfoNCE", "DCL"):
    for seed in SEEDS:
        run(
            f"fit --name {objective}_{seed} --seed_everything {seed} --model.encoder.width 16 "
            "--model.encoder.stem imagenet "
            f"--model.objective {objective} --model.objective.temperature 0.5 --data Digits "
            "--data.batch_size 64 --data.views.scale [0.7,1.0] --data.views.degrees 10.0 "
            "--trainer.max_epochs 4 --trainer.check_val_every_n_epoch 4 --trainer.log_every_n_steps 22 "
            "--trainer.accelerator cpu"
        )

# %% [markdown]
# ## One network, many numbers
#
# A protocol is a name for everything that changes an accuracy: layer, k, kernel temperature, distance, probe.
# The three tables below are of the same network and the same images. Only numbers of one protocol may be
# compared.

# %%
run("evaluate runs/InfoNCE_0 --protocol macl --protocol solo --protocol few_labels")

# %% [markdown]
# Every row of `evaluation.json` says how it was measured, so that a number cannot lose its protocol.

# %%
next(row for row in Run("runs/InfoNCE_0").evaluation if row["metric"] == "knn_top1")

# %% [markdown]
# ## Compare
#
# `val/knn_top1` was measured at the end of each run, on scans held out of the train split. `compare` groups
# the runs by objective, pairs them by seed, refuses runs that differ in anything else, and says in a sentence
# what may be concluded. To compare rows of `evaluation.json` on the test split, evaluate every run and leave
# `--metric` out.

# %%
run("compare runs --by objective --metric val/knn_top1")

# %% [markdown]
# The same from Python, drawn: each line is a seed. Lines that cross mean that the sign of the difference
# depends on the seed.

# %%
found = compare(find_runs(["runs"]), by="objective", selector=MetricSelector(metric="val/knn_top1"))
(pair,) = found.pairs
figure, axes = plt.subplots(figsize=(5, 3))
for seed, values in zip(found.seeds, zip(pair.first.values, pair.second.values, strict=True), strict=True):
    axes.plot((pair.first.name, pair.second.name), values, "o-", label=f"seed {seed}")
axes.set(ylabel="kNN %")
axes.margins(x=0.2)
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## From here
#
# - `ssl-vision sweep configs/sweep/objectives_digits.yaml` trains every cell of such a grid, several at a
#   time.
# - `ssl-vision report runs` makes a page of it.
# - `docs/evaluation.md` says which published table compares with which protocol.
