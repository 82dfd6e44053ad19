"""The models that a recipe, the command line or a file can name."""

from bayesify.exporting.architectures import architectures as models

__all__ = ["models"]
