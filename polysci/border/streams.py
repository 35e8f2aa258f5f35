"""Standard streams that are closed, or that take nothing more."""

import os
import sys

_STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


def open_closed_streams() -> None:
    """Connect each closed standard stream to the null device, for this process and its children.

    A closed descriptor would go to the next file that is opened, and messages into that. What is
    written to a standard output that was closed fails, as on a full disk: it is lost.
    """
    for descriptor, (name, access) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, access)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


def output_fault() -> OSError | None:
    """Return why standard output did not take what was printed, if it did not.

    What is left of it is dropped, so that the interpreter does not try again as it ends.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return error
    return None
