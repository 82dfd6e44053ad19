"""Models leave memory: files now."""

from bayesify.exporting.model_file import load, save

__all__ = ["load", "save"]
