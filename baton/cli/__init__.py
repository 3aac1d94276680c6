"""The command line.

In reading order:

- `program` runs one command; `arguments`: the commands; `request_flags`, `flags`, `values`: their flags.
- `commands`: what they do; `views`: what they share.
- `target`: the fleet that they call; `forwarding` reaches one in a cluster.
- `exits`: errors and exit codes.

May import the SDK and `baton.fleet`.
"""

import signal


def main() -> int:
    """Run the program `baton`. Until its modules are loaded, Ctrl-C ends it without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from baton.cli.program import main as run  # noqa: PLC0415 -- it takes a while

    return run()
