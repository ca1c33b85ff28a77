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
# A small temperature lets the hardest negatives dominate the gradient. Images are pushed apart evenly
# (uniformity), and so are images of one class (tolerance), which nobody wanted. A large temperature treats
# all negatives alike, with the opposite effect. MACL lets the temperature follow the alignment of the
# positives instead of choosing one.
#
# This notebook trains one network at five temperatures and one with MACL, and draws what the measures say.

# %%
import os
import tempfile

import matplotlib.pyplot as plt
from scipy.stats import spearmanr

from ssl_vision.main import main
from ssl_vision.runs.registry import Run

os.chdir(tempfile.mkdtemp())
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)


def run(command: str) -> None:
    """What `ssl-vision` and this command do in a terminal, without progress bars."""
    if main([*command.split(), "--quiet"]):
        raise RuntimeError(command)


# %% [markdown]
# ## Six runs
#
# The seed is the same, and with it the initial weights, the batches and every random view: the objective is
# all that differs. Eight epochs are few; raise `EPOCHS` to see more.

# %%
EPOCHS = 8
TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)


def fit(name: str, objective: str) -> Run:
    """Trains a narrow ResNet-18 on the digits."""
    run(
        f"fit --name {name} --model.encoder.width 16 --model.encoder.stem imagenet {objective} --data Digits "
        f"--data.batch_size 128 --trainer.max_epochs {EPOCHS} --trainer.check_val_every_n_epoch {EPOCHS} "
        "--trainer.log_every_n_steps 11 --trainer.accelerator cpu"
    )
    return Run(f"runs/{name}")


fixed = [
    fit(f"infonce_{tau}", f"--model.objective InfoNCE --model.objective.temperature {tau}")
    for tau in TEMPERATURES
]
macl = fit("macl", "--model.objective MACL --model.objective.temperature 0.1 --model.objective.alpha 2")
print(f"MACL's temperature at the end: {macl.last('train/temperature'):.3f}")

# %% [markdown]
# ## The four measures against the temperature
#
# All are of the backbone's features of held-out scans. Alignment A: mean squared distance of two views of an
# image, low is good. Uniformity U: low is evenly spread. Tolerance T: mean cosine of images of one class,
# counted over all pairs, high is good. Sensitivity S: how well the cosine tells one class from two, high is
# good. The dot is MACL, at the temperature where it ended.

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
# Spearman's rank correlation says whether a measure rises with the temperature (1), falls (−1), or neither.
# Five runs of one seed describe these runs; they prove nothing about others.

# %%
for measure in MEASURES:
    rho = spearmanr(TEMPERATURES, [one.last(f"val/{measure}") for one in fixed]).statistic
    print(f"{measure:<12} {rho:+.2f}")

# %% [markdown]
# If uniformity and tolerance above have one sign, that is the dilemma: whatever the temperature, what spreads
# all images evenly also spreads those of one class.

# %% [markdown]
# ## Alignment against uniformity
#
# Down and to the left is better in both. Each dot is a network, with its temperature; the colour is its kNN
# accuracy.

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
# ## From here
#
# The digits are too easy to rank objectives, and one seed is too few. `--config
# configs/pretrain/cifar10.yaml` asks the same question of CIFAR-10; notebook 05 compares objectives over
# seeds.
