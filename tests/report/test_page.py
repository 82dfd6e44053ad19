"""The page is one whole, valid and safe file that says what was run and marks what was quick."""

from html.parser import HTMLParser
from itertools import pairwise

import pytest

from bayesify.report import ResultError, write_report
from bayesify.report.page import render
from bayesify.report.results import read_results

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Collects the elements of a page and sees that every one is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.sections: dict[str, list[str]] = {}
        self.section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "section":
            self.section = attributes["id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "section":
            self.section = ""

    def handle_data(self, data):
        if data.strip() and "style" not in self.open:
            self.words.append(data.strip())
            self.sections.setdefault(self.section, []).append(data.strip())

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def written(folder, tmp_path):
    """Return a function that writes the report and reads it back."""

    def write() -> tuple[str, Page]:
        out = tmp_path / "report.html"
        write_report(folder.path, out)
        text = out.read_text("utf-8")
        return text, Page(text)

    return write


def test_a_page_of_every_kind_is_whole_and_accessible(folder, written, paper):
    for kind in ("pruning", "regression", "confidence", "speed", "gap"):
        folder.write(kind, paper=paper if kind == "pruning" else None)
    text, page = written()
    assert text.startswith("<!DOCTYPE html>")
    assert page.open == []
    assert page.all("html") == [{"lang": "en-GB"}]
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.all("img")) == len(page.all("figcaption")) >= 6
    assert all("scope" in head for head in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    anchors = [each["id"] for each in page.all("section")]
    assert len(set(anchors)) == len(anchors)
    assert [link["href"] for link in page.all("a")] == [f"#{anchor}" for anchor in anchors]


def test_the_page_fetches_nothing(folder, written):
    folder.write()
    text, page = written()
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in page.all("img"))
    for forbidden in ("http:", "https:", "url(", "@import", "<script", "<link"):
        assert forbidden not in text


def test_the_header_says_what_was_run(folder, written, cell):
    provenance = cell()["provenance"]
    folder.write("gap", history=[], seed=0)
    other = {"commit": "fff0000-dirty", "started": "2026-11-17"}
    folder.write("gap", history=[], seed=1, provenance={**provenance, **other})
    _, page = written()
    header = page.sections[""]
    facts = dict(pairwise(header))
    assert facts["Studies"] == "1"
    assert facts["Runs"] == "2 (2 full, 0 quick)"
    assert facts["Commits"] == "abc1234 (1 run), fff0000-dirty (1 run)"
    assert facts["Hardware"] == "NVIDIA H200"
    assert facts["Run between"] == "2026-11-15 and 2026-11-17"
    assert facts["Computing time"] == "3 min 0 s"
    assert "quick run" not in page.words


def test_provenance_that_is_not_known_is_no_error(folder, written):
    folder.write("gap", history=[], provenance={})
    _, page = written()
    assert "Computing time" not in page.words


def test_quick_runs_are_marked_and_stand_apart(folder, written, cell):
    measured = cell()["measured"]
    measured["not_pruned"]["accuracy"] = 0.1234
    folder.write(seed=0)
    folder.write(seed=0, is_quick=True, measured=measured)
    _, page = written()
    full, quick = page.sections["vmlp-pruning"], page.sections["vmlp-pruning-quick"]
    assert "12.34" in quick
    assert "12.34" not in full
    assert "98.31" in full
    assert "quick run" not in full
    # The heading, both tables and all four figures.
    assert quick.count("quick run") == 1 + 2 + 4
    assert any("cut short" in words for words in quick)
    assert any(words.startswith("1 of the runs") for words in page.sections[""])


def test_text_from_a_file_stays_text(folder, written):
    evil = "<script>alert('x')</script>\"><img src=x>&amp;"
    labels = {"start": evil, "layer": evil, "protocol": evil}
    changes = {"title": evil, "labels": labels, "recipe": {evil: evil}, "cell": evil}
    folder.write(**changes, provenance={"commit": evil}, paper={"source": evil})
    folder.write("gap", measured={evil: evil})
    text, page = written()
    assert "<script" not in text
    assert page.words.count(evil) >= 8
    assert all(image["src"].startswith("data:") for image in page.all("img"))


def test_tables_span_what_they_say_they_span(folder, written, cell, paper):
    measured = cell()["measured"]
    measured["prunings"] *= 3
    folder.write(measured=measured, paper=paper)
    _, page = written()
    spans = [
        each["rowspan"] for tag, each in page.elements if tag in ("td", "th") and "rowspan" in each
    ]
    # Two labels, not pruned and four numbers of the paper; then two labels and three scores.
    assert spans == ["3"] * (7 + 5)


def test_details_hold_provenance_recipe_and_warnings(folder, written, paper):
    folder.write(seed=0, recipe={"fit": {"epochs": 2}}, paper=paper)
    folder.write(seed=1, recipe={"fit": {"epochs": 3}})
    _, page = written()
    words = page.sections["vmlp-pruning"]
    for expected in ("python run.py", "fit.epochs", "2", "3", "0.5736, 0.5396, 0.239"):
        assert expected in words
    warning = "The seeds of frequentist-additive-elbo differ in more than the seed: fit.epochs."
    assert warning in words


def test_the_kl_is_shown_where_a_layer_needs_it(folder, written):
    folder.write("gap", history=[], labels={"layer": "dense"})
    assert "log-uniform-kl--figure" not in written()[1].sections
    folder.write("gap", history=[], labels={"layer": "multiplicative"}, seed=1)
    assert "log-uniform-kl--figure" in written()[1].sections


def test_files_that_are_no_cells_are_listed_at_the_end(folder, written):
    folder.write("gap", history=[])
    (folder.path / "core").mkdir()
    (folder.path / "core" / "speed.json").write_text("{}", encoding="utf-8")
    _, page = written()
    assert page.sections["skipped--files"][-1] == "core/speed.json: not a study cell"
    assert list(page.sections)[-1] == "skipped--files"


def test_studies_whose_names_look_alike_have_anchors_of_their_own(folder, written):
    for study in ("a/b", "a-b", "A b", "--"):
        folder.write("gap", history=[], labels={}, study=study)
    _, page = written()
    anchors = {each["id"] for each in page.all("section")}
    assert {"a-b", "a-b--2", "a-b--3", "study"} <= anchors


def test_report_says_what_it_holds(folder, tmp_path):
    for changes in ({"seed": 0}, {"seed": 1}, {"is_quick": True}):
        folder.write("gap", history=[], labels={}, **changes)
    (folder.path / "other.json").write_text("[]", encoding="utf-8")
    out = tmp_path / "deep" / "report.html"
    report = write_report(folder.path, out)
    assert (report.path, report.num_studies, report.num_cells, report.num_quick) == (out, 1, 3, 1)
    assert report.skipped == ("other.json",)


def test_the_same_results_give_the_same_page(folder):
    folder.write()
    results = read_results(folder.path)
    assert render(results) == render(results)


def test_a_damaged_cell_leaves_the_old_page_alone(folder, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("old", encoding="utf-8")
    folder.write(measured={})
    with pytest.raises(ResultError, match=r"000\.json is damaged: measured\.not_pruned is missing"):
        write_report(folder.path, out)
    assert out.read_text("utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]


def test_a_folder_without_a_cell_is_an_error(folder, tmp_path):
    (folder.path / "other.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ResultError, match=r"there is no cell of a study under .* \(1 other JSON"):
        write_report(folder.path, tmp_path / "report.html")
