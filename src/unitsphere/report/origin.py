"""Where a study's figures come from, as its pages say it."""

from collections.abc import Mapping


def origin(source: Mapping[str, str | None]) -> str:
    """Command, commit of the runs and machine, in Markdown, from a document's "provenance"."""
    return (
        f"Command: `{source['command']}`  \n"
        f"Commit: {source['runs_commit'] or source['commit']}  \n"
        f"Machine: {source['machine']}, torch {source['torch']}\n"
    )
