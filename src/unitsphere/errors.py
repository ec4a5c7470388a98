"""What the command line turns into one line: a mistake, a run that failed or was stopped."""


class UserError(Exception):
    """A mistake of the user's: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with status 2.
    """


class RunFailed(UserError):
    """A run that came to no usable result, such as a loss that is NaN.

    The command line prints it without a traceback and exits with status 1.
    """


class Preempted(Exception):
    """The run was asked to stop and has saved; the message says how to go on.

    The command line prints the message and exits with status 75.
    """
