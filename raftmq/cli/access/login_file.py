"""A new login file: for its owner's eyes only, and never in place of another file."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import click

from raftmq.cli.exits import Failure
from raftmq.cli.output import note
from raftmq.errors import OutcomeUnknown

LOGIN_PATH = click.Path(dir_okay=False, path_type=Path)
"""The value of an option `--login-file`."""


class LoginFile:
    """A new login file, as a context manager around the change that makes its login valid.

    Entering makes the file, empty and with mode 0600, so that a wrong path is refused before the
    cluster is changed. A block that fails leaves no file, unless the file holds a login that may be
    valid: the outcome of the change is unknown.

    Args:
        path: where the file is made.

    Raises:
        Failure: the path exists, or the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_written = False

    def __enter__(self) -> Self:
        try:
            self._file = open(self._path, "x", opener=_for_owner)
        except FileExistsError as error:
            fix = "give --login-file another path, or move that file away: a program may use it"
            raise Failure(f"{self._path} exists", fix=fix) from error
        except OSError as error:
            message = f"the login file {self._path} cannot be made: {error.strerror}"
            raise Failure(message, fix="give --login-file a path that can be written") from error
        return self

    def write(self, **login: str) -> None:
        """Write the login: `user` and `password`, or `token`, in ASCII.

        Raises:
            OSError: the disk does not take the bytes.
        """
        # A JSON string of ASCII is valid TOML, too.
        self._file.write("".join(f"{name} = {json.dumps(text)}\n" for name, text in login.items()))
        # A full disk must show before the cluster is changed.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._is_written = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After a failed `write` there are bytes left, and closing fails for the same reason.
        with suppress(OSError):
            self._file.close()
        if error is None:
            return
        if self._is_written and not _is_without_effect(error):
            note(f"{self._path} is kept: its login may be valid")
        else:
            self._path.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_without_effect(error: BaseException) -> bool:
    """Whether a call that ended like this has changed nothing; after Ctrl-C it may have."""
    return isinstance(error, Failure) and not isinstance(error.__cause__, OutcomeUnknown)
