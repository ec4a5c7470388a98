"""What the command line turns into one line: a user's mistake, and a run that was stopped."""


class UserError(Exception):
    """A mistake of the user's: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with status 2.
    """


class Preempted(Exception):
    """The run was asked to stop and has saved; the message says how to go on.

    The command line prints the message and exits with status 75.
    """
