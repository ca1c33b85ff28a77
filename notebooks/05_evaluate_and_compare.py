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
# The accuracy of a network depends on the protocol, and the difference between two objectives depends on the
# seed. This notebook evaluates a run under several protocols, and compares two objectives over four seeds
# with statistics that can also conclude that no difference was found.

# %%
import os
import tempfile

import matplotlib.pyplot as plt

import ssl_vision
from ssl_vision.experiments.compare.comparison_tables import part_of
from ssl_vision.experiments.compare.paired_comparison import compare

os.chdir(tempfile.mkdtemp())
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)


# %% [markdown]
# ## Two objectives, four seeds
#
# Runs with the same seed have the same initial weights, batches and views, whatever their objective. They
# form pairs, so that the randomness of the seed cancels in their difference.

# %%
SEEDS = range(4)
config = {
    "model.encoder.width": 16,
    "model.encoder.stem": "imagenet",
    "model.objective.temperature": 0.5,
    "data": "Digits",
    "data.batch_size": 64,
    "data.views.scale": [0.7, 1.0],
    "data.views.degrees": 10.0,
    "trainer.max_epochs": 4,
    "trainer.check_val_every_n_epoch": 4,
    "trainer.log_every_n_steps": 22,
    "trainer.accelerator": "cpu",
}
runs = [
    ssl_vision.fit(
        [{"model.objective": objective}, config],
        name=f"{objective}_{seed}",
        seed_everything=seed,
        report=False,
    )
    for objective in ("InfoNCE", "DCL")
    for seed in SEEDS
]
runs[0]

# %% [markdown]
# ## One network under three protocols
#
# A protocol specifies everything that affects an accuracy: the layer, k, the kernel temperature, the distance
# and the probe. The tables below evaluate the same network on the same images. Compare only numbers of the
# same protocol.

# %%
result = ssl_vision.evaluate(runs[0], protocol=["macl", "solo", "few_labels"], report=False)
result

# %% [markdown]
# Each row of the result, and of `evaluation.json`, states how it was measured.

# %%
result.rows[0].as_dict()

# %% [markdown]
# ## Comparison over seeds
#
# `val/knn_top1` was measured at the end of each run on held-out scans of the training set. `compare` groups
# the runs by objective and pairs them by seed. It refuses runs that differ in any other setting, and states
# the conclusion in a sentence. To compare accuracies on the test split, evaluate every run and omit
# `metric`. In a terminal, the command is `ssl-vision compare runs --by objective --metric val/knn_top1`.

# %%
comparison = compare(runs, by="objective", metric="val/knn_top1")
print(part_of(comparison).text)

# %% [markdown]
# In the plot, each line is a seed. If lines cross, the sign of the difference depends on the seed.

# %%
(pair,) = comparison.pairs
figure, axes = plt.subplots(figsize=(5, 3))
for seed, values in zip(
    comparison.seeds, zip(pair.first.values, pair.second.values, strict=True), strict=True
):
    axes.plot((pair.first.name, pair.second.name), values, "o-", label=f"seed {seed}")
axes.set(ylabel="kNN %")
axes.margins(x=0.2)
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## Next steps
#
# - `ssl-vision sweep configs/sweep/objectives_digits.yaml` trains all runs of such a grid, several at a time.
# - `ssl-vision report runs` writes an HTML report of the comparison.
# - `docs/evaluation.md` lists the published tables that each protocol corresponds to.
