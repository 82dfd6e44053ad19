"""The command line: the library's own verbs, and a demonstration."""

from bayesify.cli.app import app
from bayesify.cli.demo import demo
from bayesify.cli.evaluate import evaluate
from bayesify.cli.fit import fit
from bayesify.cli.predict import predict
from bayesify.cli.summary import summary

# In the order a newcomer meets them, which is the order `bayesify --help` lists them in.
for command in (demo, fit, predict, evaluate, summary):
    app.command()(command)

__all__ = ["app"]
