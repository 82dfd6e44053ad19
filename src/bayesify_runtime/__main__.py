"""`python -m bayesify_runtime model.onnx inputs.npy`: predictions as CSV, without torch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bayesify_runtime.runtime import Runtime
from bayesify_runtime.tables import as_csv, prediction_columns, read_inputs, run_batches


def main(arguments: list[str] | None = None) -> None:
    """Run a file on inputs, or show its manifest."""
    parser = argparse.ArgumentParser(
        prog="python -m bayesify_runtime",
        description="Predict with a file that bayesify.export wrote, and say how sure.",
    )
    parser.add_argument("model", help="the .onnx file")
    parser.add_argument(
        "inputs",
        nargs="?",
        help=".npy or .csv, one example per row, on the scale of the training data as it is "
        "stored; .npz for several inputs. Without it the manifest is shown",
    )
    parser.add_argument("--out", type=Path, help="CSV file; by default standard output")
    parser.add_argument("--batch-size", type=int, default=256, help="examples per pass")
    parser.add_argument("--num-threads", type=int, default=1, help="threads of one pass")
    wanted = parser.parse_args(arguments)
    try:
        text = _answer(wanted)
    except (ValueError, TypeError, OSError, ImportError) as error:
        parser.exit(2, f"Error: {error}\n")
    if wanted.out is None:
        sys.stdout.write(text)
    else:
        wanted.out.write_text(text, newline="", encoding="utf-8")


def _answer(wanted: argparse.Namespace) -> str:
    runtime = Runtime(wanted.model, num_threads=wanted.num_threads)
    if wanted.inputs is None:
        return json.dumps(runtime.manifest, indent=2) + "\n"
    inputs = read_inputs(wanted.inputs, runtime)
    answer = run_batches(runtime, inputs, wanted.batch_size)
    return as_csv(prediction_columns(answer, runtime.manifest))


if __name__ == "__main__":
    main()
