"""The errors that the command line shows as one line: a mistake, a failed run, a stopped run."""


class UserError(Exception):
    """A user's mistake: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with status 2.
    """


class RunFailed(UserError):
    """A run without a usable result, such as one whose loss became NaN.

    The command line prints it without a traceback and exits with status 1.
    """


class Preempted(Exception):
    """The run was asked to stop and has saved; the message says how to resume it.

    The command line prints the message and exits with status 75.
    """
