"""The exceptions of the package."""

from typing import Self


class BayesGrpoError(Exception):
    """Base of every exception that this package raises on purpose."""


class InputError(BayesGrpoError):
    """A log, a table or a setting that cannot be used as it is.

    The message is one line: where (file, row, column), what was found, what was expected, and the
    usual mend.  What was found may hold anything: line breaks and control characters of it are
    shown escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))

    def at(self, where: str) -> Self:
        """Return the same error with a place in front of its message.

        Parameters
        ----------
        where
            Name of the file, table or run; put before the message unless it is there already.

        Returns
        -------
        InputError
            A new exception of the same class.
        """
        message = str(self)
        return self if message.startswith(where) else type(self)(f"{where}: {message}")


class ModelFileError(InputError):
    """A model file that cannot be read, or that names a part or prior which does not exist."""
