"""The errors polysci raises; each message says what, where, the likely cause and what to do."""

from polysci.text.lengths import cut_message


class PolysciError(Exception):
    """Every error that polysci raises on purpose.

    What it repeats of a text that came in, be it of megabytes, is cut.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(cut_message(str(message)))


class SpecError(PolysciError, ValueError):
    """A description (layer words, C nest, model file, option) breaks a rule of its grammar."""


class IllegalScheduleError(PolysciError):
    """A schedule does not cover the domain exactly once or reverses a dependence."""


class UnsupportedError(PolysciError):
    """A valid request that polysci does not implement."""


class BuildError(PolysciError):
    """The compiler is absent, failed, ran too long or produced something unusable."""


class NoCompilerError(BuildError):
    """There is no C compiler, or the one that is named does not run, or hangs."""


class CheckError(PolysciError):
    """A compiled candidate crashed, looped or returned a wrong result."""


class WisdomError(PolysciError):
    """The record file cannot be read, written or trusted."""


class FarmError(PolysciError):
    """A scheduler or its workers are gone, or cannot do what is asked."""


class UnexpectedError(PolysciError):
    """A fault of polysci itself; the message asks to report it, ``__cause__`` is the error."""
