"""The command line: the library's own verbs, and a demonstration."""

from bayesify.cli.app import app
from bayesify.cli.compress import compress
from bayesify.cli.demo import demo
from bayesify.cli.evaluate import evaluate
from bayesify.cli.export import export
from bayesify.cli.fit import fit
from bayesify.cli.predict import predict
from bayesify.cli.report import report
from bayesify.cli.reproduce import reproduce
from bayesify.cli.summary import summary

# In the order a newcomer meets them, which is the order `bayesify --help` lists them in.
for command in (demo, fit, predict, evaluate, compress, export, summary, reproduce, report):
    app.command()(command)

__all__ = ["app"]
