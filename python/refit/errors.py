# SPDX-License-Identifier: Apache-2.0
"""A status other than ok, as an exception."""
import ctypes

from refit import _c


class Error(Exception):
    """`status` is one of "invalid", "mismatch", "timeout" … (<refit/status.h>), `action` what can be done about it."""

    def __init__(self, status, text, action=""):
        super().__init__(f"{text} ({status}: {action})" if action else f"{text} ({status})")
        self.status, self.text, self.action = status, text, action


def check(library, function, *arguments):
    """Calls a function whose last parameter is a refit_error."""
    error = _c.Error()
    status = getattr(library, function)(*arguments, ctypes.byref(error))
    if status != 0:
        raise of(library, status, error.text)


def of(library, status, text):
    return Error(library.refit_status_name(status).decode(), text.decode(errors="replace"),
                 library.refit_status_action(status).decode())
