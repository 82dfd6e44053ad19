"""Cells are read, checked and grouped; quick runs stand apart; damage names its file."""

import json
import re

import pytest

from bayesify.report import ResultError, read_results


def test_a_cell_is_read_with_all_it_holds(folder, paper):
    path = folder.write(paper=paper)
    (cell,) = read_results(folder.path).cells
    assert (cell.file, cell.study, cell.seed, cell.is_quick) == (
        str(path),
        "vmlp/pruning",
        0,
        False,
    )
    assert list(cell.labels) == ["protocol", "start", "layer"]
    assert cell.paper.sparsity == (0.5736, 0.5396, 0.239)
    assert cell.paper.accuracy["random"] == 0.2573
    assert cell.history[1]["energy"] == 100.0


def test_seeds_of_a_cell_form_a_group_in_order(folder):
    for seed in (2, 0, 1):
        folder.write(seed=seed)
    (group,) = folder.study().groups
    assert [cell.seed for cell in group.cells] == [0, 1, 2]
    assert group.short_name == "frequentist, additive"
    assert group.differing_choices == ()


def test_choices_in_which_seeds_differ_are_found(folder):
    folder.write(seed=0, recipe={"fit": {"epochs": 2, "seed": 0}, "seed": 0})
    folder.write(seed=1, recipe={"fit": {"epochs": 3, "seed": 1}, "seed": 1, "extra": "x"})
    (group,) = folder.study().groups
    assert group.differing_choices == ("fit.epochs", "extra")


def test_quick_runs_and_full_runs_never_share_a_study(folder):
    folder.write(seed=0)
    folder.write(seed=1, is_quick=True)
    full, quick = read_results(folder.path).studies
    assert (full.is_quick, quick.is_quick) == (False, True)
    assert [cell.seed for cell in full.cells] == [0]
    assert [cell.seed for cell in quick.cells] == [1]


def test_studies_and_protocols_are_grouped(folder):
    for protocol in ("tempered", "elbo"):
        for layer in ("dense", "additive"):
            labels = {"layer": layer, "protocol": protocol}
            folder.write(cell=f"{layer}-{protocol}", labels=labels)
    folder.write("speed")
    pruning, speed = read_results(folder.path).studies
    assert (pruning.kind, speed.kind) == ("pruning", "speed")
    names = {key: [each.name for each in groups] for key, groups in pruning.protocols.items()}
    assert names == {
        "elbo": ["additive-elbo", "dense-elbo"],
        "tempered": ["additive-tempered", "dense-tempered"],
    }


def test_cells_of_one_last_label_stand_together_then_starts_then_layers(folder):
    for start in ("frequentist", "bayesian"):
        for layer in ("dense", "additive"):
            for kl in ("weak", "elbo"):
                labels = {"start": start, "layer": layer, "kl": kl}
                folder.write(cell="-".join(labels.values()), labels=labels)
    assert [group.name for group in folder.study().groups] == [
        f"{start}-{layer}-{kl}"
        for kl in ("elbo", "weak")
        for start in ("bayesian", "frequentist")
        for layer in ("additive", "dense")
    ]


def test_numbers_among_labels_are_sorted_by_size(folder):
    for reviews in (50000, 1000, 5000):
        folder.write(cell=str(reviews), labels={"reviews": reviews, "layer": "dense"})
    assert [group.name for group in folder.study().groups] == ["1000", "5000", "50000"]


def test_a_label_whose_dot_was_left_out_gets_it_back(folder):
    for std in ("001", "0002", "0", "10", "0x"):
        folder.write(cell=f"std-{std}", labels={"std": std, "layer": "dense"})
    assert [(group.name, group.labels["std"]) for group in folder.study().groups] == [
        ("std-0", "0"),
        ("std-0002", "0.002"),
        ("std-001", "0.01"),
        ("std-10", "10"),
        ("std-0x", "0x"),
    ]


def benchmark(**changes):
    row = {"table": "3.1", "layer": "dense", "mode": "eager", "median_us": 1.5}
    return {"study": "vmlp/layers", "provenance": {"torch": "2"}, "rows": [row], **changes}


def test_a_benchmark_is_a_study_of_speed_with_one_cell(folder):
    path = folder.path / "layers.json"
    path.write_text(json.dumps(benchmark()), encoding="utf-8")
    study = folder.study()
    assert (study.name, study.kind, study.title) == ("vmlp/layers", "speed", "Speed of layers")
    (cell,) = study.cells
    assert (cell.name, cell.provenance, cell.is_quick) == ("layers", {"torch": "2"}, False)
    assert cell.measured.rows[0].median_us == 1.5
    path.write_text(json.dumps(benchmark(title="Cost of a layer")), encoding="utf-8")
    assert folder.study().title == "Cost of a layer"


def test_a_damaged_benchmark_is_named_with_its_place(folder):
    content = benchmark(rows=[{"table": "3.1"}])
    (folder.path / "layers.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ResultError, match=r"layers\.json is damaged: rows\[0\]\.layer is missing"):
        read_results(folder.path)


def test_a_cell_without_labels_is_called_by_its_name(folder):
    folder.write(labels={})
    (group,) = folder.study().groups
    assert (group.short_name, group.protocol) == ("frequentist-additive-elbo", "")


def test_labels_may_be_numbers_but_not_lists(folder):
    folder.write(labels={"prior_std": 0.5})
    assert folder.study().groups[0].labels == {"prior_std": "0.5"}
    folder.write(labels={"prior_std": [0.5]}, seed=1)
    with pytest.raises(ResultError, match=r"labels\.prior_std must be a string or a number"):
        read_results(folder.path)


def test_files_that_are_no_cells_are_listed_not_read(folder):
    folder.write()
    (folder.path / "core").mkdir()
    (folder.path / "core" / "speed.json").write_text('{"gpu": {"kind": "x"}}', encoding="utf-8")
    (folder.path / "list.json").write_text("[1, 2]", encoding="utf-8")
    (folder.path / "notes.txt").write_text("{", encoding="utf-8")
    found = read_results(folder.path)
    assert found.skipped == ("core/speed.json", "list.json")
    assert len(found.cells) == 1


@pytest.mark.parametrize("key", ["study", "cell", "seed", "is_quick", "provenance", "history"])
def test_a_cell_that_lost_a_key_is_damaged_not_skipped(folder, key):
    path = folder.write()
    content = json.loads(path.read_text("utf-8"))
    del content[key]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ResultError, match=f"{re.escape(str(path))} is damaged: {key} is missing"):
        read_results(folder.path)


@pytest.mark.parametrize("content", [b'{"study": "vml', b"", b"\xff\xfe\x00"])
def test_a_file_that_is_not_json_is_named(folder, content):
    path = folder.path / "half.json"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=r"half\.json is damaged: it is not JSON"):
        read_results(folder.path)


def test_the_same_cell_and_seed_twice_is_refused_with_both_files(folder):
    first, second = folder.write(), folder.write()
    with pytest.raises(ResultError, match="the same cell and seed") as caught:
        read_results(folder.path)
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_a_paper_may_have_one_accuracy_or_none(folder):
    folder.write(seed=0, paper={"accuracy": 0.9})
    folder.write(seed=1, paper={"gap": 1})
    first, second = read_results(folder.path).cells
    assert first.paper.accuracy == {"not_pruned": 0.9}
    assert (second.paper.accuracy, second.paper.source) == ({}, "")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder of results"):
        read_results(tmp_path / "nothing")


def test_an_empty_folder_holds_nothing(tmp_path):
    found = read_results(tmp_path)
    assert (found.studies, found.skipped) == ((), ())
