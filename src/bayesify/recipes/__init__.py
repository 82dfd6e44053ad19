"""Runs described in text: read a recipe, carry it out, take the model up again."""

from bayesify.recipes.ood import make_ood, ood_variants
from bayesify.recipes.recipe import Recipe, make_recipe, read_recipe
from bayesify.recipes.run import run_recipe
from bayesify.recipes.run_folder import RunFolder
from bayesify.recipes.trained import Trained, load_trained

__all__ = [
    "Recipe",
    "RunFolder",
    "Trained",
    "load_trained",
    "make_ood",
    "make_recipe",
    "ood_variants",
    "read_recipe",
    "run_recipe",
]
