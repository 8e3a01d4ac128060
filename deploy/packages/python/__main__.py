"""`python -m adjutant` is the same as `adjutant`, where the folder of scripts is not in PATH."""

import os
import sys
import sysconfig
from pathlib import Path


def program():
    # An environment or the system, `pip install --user`, or `pip install --target`.
    user = sysconfig.get_path("scripts", f"{os.name}_user")
    folders = [sysconfig.get_path("scripts"), user, str(Path(__file__).resolve().parent.parent / "bin")]
    paths = [os.path.join(folder, "adjutant") for folder in folders]
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    sys.exit(f"the program adjutant is not in any of {', '.join(folders)}: install the package again")


if __name__ == "__main__":
    path = program()
    # In place of this process, so that signals and the exit code are those of the server.
    os.execv(path, [path, *sys.argv[1:]])
