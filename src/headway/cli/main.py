"""Where the program starts."""

from __future__ import annotations

import errno
import os
import signal
import sys

if os.getpid() == 1:
    # The first process of a pod has no default handler: without this one, a pod that is told to
    # stop during the imports that follow would be killed only minutes later.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

from headway.cli.command_table import help_text

REFUSALS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.EDQUOT,
)
"""Of the operating system: about the user's files, so its message says all there is to say."""


def main() -> None:
    if sys.argv[1:] in (["--help"], ["-h"], ["help"], ["help", "--all"]):
        print(help_text(has_all="--all" in sys.argv))
        sys.exit()
    if sys.argv[1:2] == ["help"]:  # headway help COMMAND
        sys.argv[1:] = [*sys.argv[2:], "--help"]
    from headway.cli.app import app
    from headway.cli.output import say
    from headway.errors import Exit, HeadwayError

    try:
        app()
    except HeadwayError as error:
        for line in f"error: {error}".splitlines():
            say(line)
        sys.exit(int(error.exit_code))
    except OSError as error:
        if error.errno not in REFUSALS or not error.filename:
            raise
        say(f"error: {error.filename}: {error.strerror}")
        sys.exit(int(Exit.BAD_INPUT))
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell reports a program that Ctrl-C ended


if __name__ == "__main__":
    main()
