"""Tests of paper files: their published numbers and the runs that they describe."""

import copy
import re
from pathlib import Path

import pytest
import torch
import yaml
from lightly.loss import DCLLoss, NTXentLoss
from lightly.models.modules.heads import SimCLRProjectionHead
from settings import CONFIGS, resnet

from ssl_vision import methods, objectives
from ssl_vision.data import Batch
from ssl_vision.errors import InputError
from ssl_vision.experiments.reproduce.paper import published_number, read_paper
from ssl_vision.experiments.reproduce.reproduce import options_of, plan_of
from ssl_vision.main import main

FILES = sorted((CONFIGS / "paper").glob("*.yaml"))
MACL = CONFIGS / "paper" / "macl.yaml"


def values(paper, table, row, metric):
    return {
        cell.column.name: cell.published[metric]
        for cell in paper.tables[table].cells
        if cell.row == row and metric in cell.published
    }


def cells_of(paper):
    return [cell for table in paper.tables.values() for cell in table.cells]


def test_macl_has_every_number_of_its_four_tables():
    paper = read_paper(MACL)
    counts = {name: sum(len(cell.published) for cell in t.cells) for name, t in paper.tables.items()}
    assert counts == {"1": 3 * 2, "2": 5 * 3 * 11, "3": 5 * 3 * 4, "4": 2 * 3 * 3}


def test_numbers_that_macl_prints_twice_are_equal():
    paper = read_paper(MACL)
    for metric in ("LE", "KNN", "S"):
        fourth = values(paper, "4", "MACL-a", metric)
        second, third = values(paper, "2", "MACL-a", metric), values(paper, "3", "MACL-a", metric)
        assert fourth == {"CIFAR10": second["256"], "CIFAR100": third["200"], "STL10": second["0.1"]}


def test_macl_tables_agree_with_claims_of_the_paper():
    """The best values of Tables 2 and 3 are where the text of the paper says they are."""
    paper = read_paper(MACL)
    rows = ("InfoNCE", "DCL", "Dual", "MACL-a", "MACL-b")
    for batch in ("64", "128", "256", "512", "1024"):
        best = max(rows, key=lambda row: float(values(paper, "2", row, "LE")[batch]))
        assert best.startswith("MACL")
    every = [(float(v), row, e) for row in rows for e, v in values(paper, "3", row, "LE").items()]
    assert max(every)[1:] == ("MACL-b", "500")
    for row in rows:  # in Table 3, more epochs never lower the accuracy
        line = [float(value) for value in values(paper, "3", row, "KNN").values()]
        assert line == sorted(line)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_percentages_and_sensitivities_are_in_range(file):
    paper = read_paper(file)
    for cell in cells_of(paper):
        for name, text in cell.published.items():
            number = published_number(text)
            assert 40 < number < 100 if paper.metrics[name].percent else 0 < number < 1


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_names_of_runs_fit_into_a_file_name(file, small):
    assert all(len(f"{cell.name}-s0.log") <= 200 for cell in cells_of(read_paper(file, small=small)))


def test_moco_rows_of_lightly_and_solo_learn_use_momentum_methods():
    for name, rows in {
        "lightly": ("MoCo", "MoCo, queue of 8192"),
        "lightly_imagenet": ("MoCo v2",),
        "solo_learn": ("MoCo v2+", "MoCo v3"),
        "solo_learn_imagenet100": ("MoCo v2+", "MoCo v3"),
    }.items():
        cells = cells_of(read_paper(CONFIGS / "paper" / f"{name}.yaml"))
        for row in rows:
            published = [cell for cell in cells if cell.row == row and cell.published]
            assert published
            assert all(cell.options["model"] in ("MoCo", "MoCoV3") for cell in published)


@pytest.mark.parametrize("small", [False, True])
def test_equal_cells_of_different_tables_share_one_run(small):
    cells = cells_of(read_paper(MACL, small=small))
    names = {cell.name for cell in cells}
    assert len(names) == len({str(cell.options) for cell in cells})
    # MACL-a of Table 4 is also in Tables 2 and 3; with one data set, the small version has more equal runs.
    assert len(names) == (2 + 5 * (11 - 1) + 5 * (4 - 1) + 1 if small else 3 + 5 * 11 + 5 * 4 + 3)


def selected_cells():
    """Return the first cell of each file and budget, and those with an option or class that is new."""
    selected, known_parts = [], set()
    for file in FILES:
        for small in (False, True):
            try:
                paper = read_paper(file, small=small)
            except InputError:
                continue
            first = True
            for cell in filter(lambda cell: cell.name, cells_of(paper)):
                parts = {*cell.options, *((k, v) for k, v in cell.options.items() if not v[:1].isdigit())}
                if first or parts - known_parts:
                    selected.append((paper, cell))
                first, known_parts = False, known_parts | parts
    return selected


@pytest.mark.parametrize(("paper", "cell"), selected_cells(), ids=lambda each: getattr(each, "name", ""))
def test_fit_accepts_options_of_paper_cells(paper, cell, tmp_path, capsys):
    plan = plan_of(paper, [cell], [3], tmp_path, {})
    command = plan.train_command(plan.trials[0])
    with pytest.raises(SystemExit) as end:
        main([*command[3:], "--print_config"])
    assert end.value.code in (0, None)
    config = yaml.safe_load(capsys.readouterr().out)
    assert (config["seed_everything"], config["name"]) == (3, f"{cell.name}-s3")
    assert config["trainer"]["max_epochs"] == int(cell.options["trainer.max_epochs"])


def network_of(name, row, **small):
    """Return the network with the objective of a row of a paper file, and the options of its first cell."""
    paper = read_paper(CONFIGS / "paper" / f"{name}.yaml")
    options = next(cell for cell in cells_of(paper) if cell.row == row).options
    parsed = {
        key.removeprefix("model."): yaml.safe_load(value)
        for key, value in options.items()
        if key[:6] == "model."
    }
    inside = {key.removeprefix("objective."): parsed[key] for key in parsed if key.startswith("objective.")}
    outside = {key: value for key, value in parsed.items() if not key.startswith(("objective", "optimizer"))}
    objective = getattr(objectives, parsed["objective"])(**inside)
    method = getattr(methods, options.get("model", "SimCLR"))
    return method(**(outside | small), objective=objective, seed=0).double(), options


def loss_on(model, views):
    return model.training_step(Batch(views[:8], torch.zeros(8), torch.arange(8), views), 0)


VIEWS = torch.randn(16, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_simco_matches_official_loss_head_and_normalisation():
    """Loss with softmax P(τ): mean of sg((1 − P(1.0)) / (1 − P(0.1))) · −log P(0.1) over both directions."""
    model, options = network_of("dual_temperature", "SimCo", encoder=resnet(width=4))
    first, relu, last = model.head.layers
    assert (type(first), type(relu), type(last)) == (torch.nn.Linear, torch.nn.ReLU, torch.nn.Linear)
    assert (first.out_features, last.out_features, first.bias is None) == (128, 128, False)
    embedded = [last(relu(first(model.backbone(view)))) for view in VIEWS.chunk(2)]
    q, k = (z / z.norm(dim=1, keepdim=True) for z in embedded)
    directions = []
    for similarity in (q @ k.T, k @ q.T):
        inner, outer = ((similarity / tau).softmax(dim=1).diagonal() for tau in (0.1, 1.0))
        directions.append((((1 - outer) / (1 - inner)).detach() * -inner.log()).mean())
    want = sum(directions) / 2
    got = loss_on(model, VIEWS)
    torch.testing.assert_close(got, want)
    gradients = [torch.autograd.grad(loss, model.backbone.conv1.weight)[0] for loss in (got, want)]
    torch.testing.assert_close(*gradients)
    assert yaml.safe_load(options["data.views.mean"]) == [0.4914, 0.4822, 0.4465]
    assert yaml.safe_load(options["data.views.std"]) == [0.247, 0.243, 0.261]


@pytest.mark.parametrize(("row", "criterion"), [("SimCLR", NTXentLoss(0.5)), ("DCL", DCLLoss(0.1))])
def test_lightly_rows_match_head_and_loss_of_lightly(row, criterion):
    model, _ = network_of("lightly", row, encoder=resnet(width=4))
    head = SimCLRProjectionHead(32, 512, 128).double()
    head.load_state_dict(model.head.state_dict())
    want = criterion(*(head(model.backbone(view)) for view in VIEWS.chunk(2)))
    torch.testing.assert_close(loss_on(model, VIEWS), want)


CONTENT = {
    "title": "T",
    "source": "S",
    "metrics": {"LE": {"protocol": "macl", "metric": "linear_top1"}},
    "options": {"config": str(CONFIGS / "pretrain/digits.yaml"), "trainer.max_epochs": 2},
    "rows": {"A": {"model.objective": "InfoNCE"}, "B": {"model.objective": "DCL"}},
    "tables": {
        "1": {
            "title": "One",
            "columns": {"Batch": {"axis": "data.batch_size", "at": [32, 64]}},
            "values": {"A": {"LE": [1.0, 2.0]}, "B": {"LE": ["3.10", "-"]}},
        }
    },
}


def write_paper(tmp_path, change) -> Path:
    content = copy.deepcopy(CONTENT)
    change(content)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def test_cell_combines_options_of_base_table_row_and_column(tmp_path):
    def change(content):
        content["options"]["data.batch_size"] = 16
        content["options"]["model.objective.temperature"] = 0.5
        content["rows"]["B"]["model.objective.temperature"] = 0.2
        content["tables"]["1"]["options"] = {"model.encoder.width": 16}

    paper = read_paper(write_paper(tmp_path, change))
    first, *_, last = paper.tables["1"].cells
    assert list(first.options)[1:] == sorted(list(first.options)[1:])
    assert next(iter(first.options)) == "config"
    assert first.options["data.batch_size"] == "32"
    assert first.options["model.encoder.width"] == "16"
    assert (first.options["model.objective.temperature"], first.name) == (
        "0.5",
        "digits-infonce-batch_size32-width16",
    )
    third = paper.tables["1"].cells[2]
    assert third.options["model.objective.temperature"] == "0.2"
    assert third.published == {"LE": "3.10"}  # as printed
    assert (last.published, last.reason, last.name) == ({}, "not published", "")


def test_extra_options_are_added_but_cannot_replace_those_of_the_paper(tmp_path):
    paper = read_paper(write_paper(tmp_path, lambda content: None))
    cells, extra = (
        paper.tables["1"].cells,
        options_of(["--trainer.precision", "bf16-mixed", "--data.root=/x"]),
    )
    trials = plan_of(paper, cells, [0], tmp_path, extra).trials
    assert [trial.name for trial in trials] == [f"{cell.name}-s0" for cell in cells if cell.name]
    assert trials[0].parameters["settings"]["trainer.precision"] == "bf16-mixed"
    with pytest.raises(InputError, match=r"--trainer.max_epochs 9: the paper file sets this option to 2"):
        plan_of(paper, cells, [0], tmp_path, {"trainer.max_epochs": "9"})
    with pytest.raises(InputError, match="none of the cells can be run"):
        plan_of(paper, cells[3:], [0], tmp_path, {})


def test_extra_config_file_gives_its_options(tmp_path):
    file = tmp_path / "gpu.yaml"
    file.write_text("model: {cuda_graph: true}\nsave_every_n_epochs: 100\n")
    options = options_of(["--config", str(file), "--save_every_n_epochs=50"])
    assert options == {"model.cuda_graph": True, "save_every_n_epochs": "50"}
    file.write_text("name: mine\n")
    with pytest.raises(InputError, match="--name is set by"):
        options_of([f"--config={file}"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--a.b"], "--a.b requires a value"),
        (["a=1"], "expected an option of fit, got a=1"),
        (["--name=x"], "--name is set by"),
        (["--ckpt_path", "last"], "--ckpt_path is set by"),
        (["--trainer.devices=8"], "--trainer.devices is set by"),
        (["--config=no-such-file.yaml"], "no-such-file.yaml"),
    ],
)
def test_invalid_extra_options_are_refused(args, message):
    with pytest.raises(InputError, match=message):
        options_of(args)


SAME_LAST_PART = {"a": {"data.x": 1}, "b": {"model.x": 1}}


def delete(key):
    return lambda content: content.pop(key)


def first_table(change):
    return lambda content: change(content["tables"]["1"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (delete("source"), "required: source"),
        (delete("rows"), "required: rows"),
        (lambda c: c.update(extra=1), "no option 'extra'"),
        (lambda c: c.update(tables=[]), "tables: expected dict"),
        (lambda c: c.update(title=["a"]), "title: expected str"),
        (lambda c: c["options"].pop("config"), "A, Batch 32 has no config"),
        (lambda c: c["options"].pop("trainer.max_epochs"), "A, Batch 32 has no .* trainer.max_epochs"),
        (
            lambda c: c["metrics"]["LE"].update(protocol="mcl"),
            "metrics.LE.protocol mcl: no such file .*'macl'",
        ),
        (first_table(lambda t: t["values"]["A"].update(LE=[1.0])), "expected a metric with 2 values"),
        (first_table(lambda t: t["values"]["A"].update(KNN=[1.0, 2.0])), "A.KNN: expected a metric"),
        (first_table(lambda t: t["columns"]["Batch"].update(ax=1)), "tables.columns: no option 'ax'"),
        (
            first_table(lambda t: t["columns"]["Batch"].update(at=SAME_LAST_PART)),
            "differ, but would both be named",
        ),
    ],
)
def test_invalid_paper_file_is_reported_in_one_line(change, message, tmp_path):
    file = write_paper(tmp_path, change)
    with pytest.raises(InputError, match=message) as error:
        read_paper(file)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)


def test_absent_file_invalid_yaml_and_absent_small_version_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_paper(tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match=r"bad.yaml"):
        read_paper(tmp_path / "bad.yaml")
    with pytest.raises(InputError, match="no small version: use --budget full"):
        read_paper(write_paper(tmp_path, lambda content: None), small=True)


def test_documented_example_is_readable_and_all_files_are_documented(tmp_path):
    page = (CONFIGS.parent / "docs" / "reproduce.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "configs").symlink_to(CONFIGS)
    (tmp_path / "mine.yaml").write_text(block, encoding="utf-8")
    cells = read_paper(tmp_path / "mine.yaml").tables["1"].cells
    assert [cell.reason for cell in cells[2:]] == [
        "",
        "not published",
        *["this method is not offered here"] * 2,
    ]
    assert {file.name for file in FILES} == set(re.findall(r"^\| `(\w+\.yaml)`", page, flags=re.MULTILINE))
