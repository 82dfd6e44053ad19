"""Models leave memory: as files of this library, and as files that other programs run."""

from bayesify.exporting.agreement import ExportError
from bayesify.exporting.export import export
from bayesify.exporting.manifest import read_manifest
from bayesify.exporting.model_file import load, save
from bayesify.exporting.runtime import Runtime

__all__ = ["ExportError", "Runtime", "export", "load", "read_manifest", "save"]
