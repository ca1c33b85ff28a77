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
# # The uniformity–tolerance dilemma
#
# At a small temperature, the hardest negatives dominate the gradient. The images are then spread evenly
# (uniformity), but images of the same class are also pushed apart (low tolerance). A large temperature treats
# all negatives alike and has the opposite effect. MACL adapts the temperature to the alignment of the
# positives.
#
# This notebook trains a network with InfoNCE at five temperatures and with MACL, and compares the measures.

# %%
import os
import tempfile

import matplotlib.pyplot as plt
from scipy.stats import spearmanr

import ssl_vision
from ssl_vision.runs.registry import Run

os.chdir(tempfile.mkdtemp())
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)


# %% [markdown]
# ## Six runs
#
# All runs have the same seed, and therefore the same initial weights, batches and random views. Only the
# objective differs. Eight epochs keep the notebook short; increase `EPOCHS` for clearer results.

# %%
EPOCHS = 8
TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)


def fit(name: str, objective: str, **options: float) -> Run:
    """Train a narrow ResNet-18 on the digits."""
    config = {
        "model.encoder.width": 16,
        "model.encoder.stem": "imagenet",
        "model.objective": {"class_path": objective, "init_args": options},
        "data": "Digits",
        "data.batch_size": 128,
        "trainer.max_epochs": EPOCHS,
        "trainer.check_val_every_n_epoch": EPOCHS,
        "trainer.log_every_n_steps": 11,
        "trainer.accelerator": "cpu",
    }
    return ssl_vision.fit(config, name=name, report=False)


fixed = [fit(f"infonce_{tau}", "InfoNCE", temperature=tau) for tau in TEMPERATURES]
macl = fit("macl", "MACL", temperature=0.1, alpha=2.0)
print(f"MACL's temperature at the end: {macl.last('train/temperature'):.3f}")

# %% [markdown]
# ## Four measures against the temperature
#
# All measures are computed from the backbone's features of held-out scans:
#
# - Alignment A is the mean squared distance between two views of an image. Lower is better.
# - Uniformity U measures how evenly the features are spread. Lower is better.
# - Tolerance T is the mean cosine of images of the same class, over all pairs. Higher is better.
# - Sensitivity S measures how well the cosine distinguishes pairs of the same class from other pairs. Higher
#   is better.
#
# The red dot is MACL at its final temperature.

# %%
MEASURES = {"alignment": "A", "uniformity": "U", "tolerance": "T", "sensitivity": "S"}

figure, panels = plt.subplots(1, 4, figsize=(11, 2.7))
for axes, (measure, letter) in zip(panels, MEASURES.items(), strict=True):
    axes.semilogx(TEMPERATURES, [one.last(f"val/{measure}") for one in fixed], ".-", label="InfoNCE")
    axes.plot(macl.last("train/temperature"), macl.last(f"val/{measure}"), "o", color="tab:red", label="MACL")
    axes.set(title=f"{measure} ({letter})", xlabel="temperature")
    axes.set_xticks(TEMPERATURES, [str(tau) for tau in TEMPERATURES])
    axes.minorticks_off()
panels[0].legend(frameon=False)
plt.show()

# %% [markdown]
# Spearman's rank correlation is 1 if a measure increases with the temperature, and −1 if it decreases. Five
# runs with one seed describe only these runs.

# %%
for measure in MEASURES:
    rho = spearmanr(TEMPERATURES, [one.last(f"val/{measure}") for one in fixed]).statistic
    print(f"{measure:<12} {rho:+.2f}")

# %% [markdown]
# If the correlations of uniformity and tolerance have the same sign, that is the dilemma: a temperature that
# spreads all images evenly also spreads the images of a class.

# %% [markdown]
# ## Alignment against uniformity
#
# Each dot is a network. Lower values of both measures are better, and the colour is the kNN accuracy.

# %%
figure, axes = plt.subplots(figsize=(5.5, 4))
everyone = [*fixed, macl]
points = axes.scatter(
    [one.last("val/uniformity") for one in everyone],
    [one.last("val/alignment") for one in everyone],
    c=[one.last("val/knn_top1") for one in everyone],
    s=60,
)
for one, label in zip(everyone, [*(f"τ = {tau}" for tau in TEMPERATURES), "MACL"], strict=True):
    place = one.last("val/uniformity"), one.last("val/alignment")
    axes.annotate(label, place, xytext=(6, 4), textcoords="offset points", fontsize=9)
axes.set(xlabel="uniformity U", ylabel="alignment A")
axes.margins(0.15)
figure.colorbar(points, label="kNN accuracy")
plt.show()

# %%
print(f"{'':<14}" + "".join(f"{measure:>13}" for measure in (*MEASURES, "knn_top1")))
for one in everyone:
    values = (one.last(f"val/{measure}") for measure in (*MEASURES, "knn_top1"))
    print(f"{one.name:<14}" + "".join(f"{value:>13.3f}" for value in values))

# %% [markdown]
# ## Next steps
#
# The report of a run shows the same dilemma for single images: which negatives push an image, and how this
# changes with the temperature and the objective. `ssl-vision report RUN` writes it; open the section
# "What the temperature does here".
#
# The digits are too easy to rank objectives, and one seed is not enough. Start from
# `configs/pretrain/cifar10.yaml` to repeat the comparison on CIFAR-10. Notebook 05 compares objectives over
# several seeds.
