"""The hash of a commit, which chooses what is run by chance."""

import pathlib
import subprocess


def hash_of(revision):
    """The hash of a revision, in hexadecimal digits; an error of git if there is none."""
    folder = pathlib.Path(__file__).parent
    command = ["git", "-C", folder, "rev-parse", "--verify", revision]
    return subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.strip()
