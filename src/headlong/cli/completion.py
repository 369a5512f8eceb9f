"""`headlong completion SHELL`: let a shell complete commands, options, and names of models.

In:  the parsers of all verbs, the catalogue and the store.
Out: a script on standard output.
"""

import argparse
import re
import sys

from headlong.cli.command_specs import read_command_specs
from headlong.cli.completion_scripts import WRITERS
from headlong.weights.catalog import CATALOG
from headlong.weights.store import Store

_PLAIN = re.compile(r"[A-Za-z0-9._@:/=+-]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.add_argument("shell", choices=tuple(WRITERS), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Write the script."""
    names = [name for entry in CATALOG for name in (entry.name, *entry.aliases)]
    stored = [model.name for model in Store().list() if model.name not in names]
    # A shell would expand others.
    stored = [name for name in stored if _PLAIN.fullmatch(name)]
    sys.stdout.write(WRITERS[args.shell](list(read_command_specs()), [*names, *stored]))
    return 0
