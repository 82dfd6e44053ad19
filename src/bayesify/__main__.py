"""`python -m bayesify` is the command line."""

from bayesify.cli import app

app(prog_name="bayesify")
