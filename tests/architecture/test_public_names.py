"""The public names: all there, each what it is called, each documented and in the README."""

import inspect
import re
from pathlib import Path

import pytest

import bayesify as bf
from bayesify.conversion import methods

README = Path(__file__).parents[2] / "README.md"
VERBS = ("convert", "summary", "fit", "predict", "evaluate", "save", "load")
PUBLIC = sorted(set(bf.__all__) - {"__version__"})


def test_all_is_sorted_and_has_no_name_twice():
    names = [name for name in bf.__all__ if name != "__version__"]
    classes = [name for name in names if name[0].isupper()]
    functions = [name for name in names if not name[0].isupper()]
    assert classes == sorted(set(classes))
    assert functions == sorted(set(functions))
    assert names == classes + functions


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_what_it_is_called(name):
    thing = getattr(bf, name)
    # A folder of the same name, imported later, would take the name's place.
    assert not inspect.ismodule(thing)
    assert thing.__name__ == name
    assert thing.__module__.startswith("bayesify.")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_has_a_docstring_of_its_own(name):
    text = getattr(bf, name).__doc__
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name}("), f"{name} has the docstring dataclass makes up"
    assert len(text.strip().splitlines()[0]) <= 100


@pytest.mark.parametrize("name", VERBS)
def test_public_verb_is_annotated(name):
    signature = inspect.signature(getattr(bf, name))
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter.name


@pytest.mark.parametrize("name", VERBS)
def test_readme_shows_every_verb(name):
    assert f"bf.{name}(" in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(methods))
def test_every_method_is_public_and_in_the_readme(name):
    method = methods[name]
    assert getattr(bf, method.__name__) is method
    assert f"`{method.__name__}`" in README.read_text(encoding="utf-8")


def test_names_in_the_readme_exist():
    text = README.read_text(encoding="utf-8")
    for name in set(re.findall(r"\bbf\.(\w+)", text)):
        assert hasattr(bf, name), f"the README names bf.{name}, which does not exist"


def test_links_in_the_readme_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links
    for link in links:
        assert "://" in link or (README.parent / link).exists(), link
