"""The messages of this package reach people who have not set up logging."""

from __future__ import annotations

import logging
import sys

_PACKAGE = "ray_h5"


class _OwnHandler(logging.Handler):
    """Writes messages to stderr as long as no other handler gets them.

    Programs that call ``logging.basicConfig``, and pytest, set handlers of the root logger. Then this handler goes.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            remove_handler()
            return
        try:
            word = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
            # Looked up now: notebooks and tests replace it.
            print(f"{_PACKAGE}: {word}{self.format(record)}", file=sys.stderr)
        except Exception:  # noqa: BLE001  logging's own way to report what went wrong in a handler
            self.handleError(record)


_own = _OwnHandler()


def ensure_handler() -> None:
    """Show messages from level INFO on, unless the program has set up logging, for itself or for this package.

    The functions that begin the work call this; an import changes nothing.
    """
    logger, root = logging.getLogger(_PACKAGE), logging.getLogger()
    if root.handlers:
        remove_handler()
    elif not logger.handlers and logger.level == logging.NOTSET and logger.propagate:
        logger.addHandler(_own)
        logger.setLevel(logging.INFO)


def remove_handler() -> None:
    """Leave the messages to the handlers of the program."""
    logger = logging.getLogger(_PACKAGE)
    if _own in logger.handlers:
        logger.removeHandler(_own)
        if logger.level == logging.INFO:
            logger.setLevel(logging.NOTSET)
