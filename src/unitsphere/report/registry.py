"""The kinds of study, and what a folder is.

A study's results.json names its `kind`. To add a kind, write a function that builds its `Page` from
the results and the study's folder, and add a line to `KINDS`: then `unitsphere report` shows it,
and `write_results` and `print_page` write and print it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.report.document import Page
from unitsphere.report.kinds.ablate import ablate_page
from unitsphere.report.kinds.compare import compare_page
from unitsphere.report.kinds.context import context_page
from unitsphere.report.kinds.finetune import finetune_page
from unitsphere.report.kinds.ladder import ladder_page
from unitsphere.report.kinds.league import league_page
from unitsphere.report.kinds.quantize import quantize_page
from unitsphere.report.kinds.quickstart import quickstart_page
from unitsphere.report.kinds.ramp import ramp_page
from unitsphere.report.kinds.run import chosen_page, run_page, several_page
from unitsphere.report.kinds.sweep import sweep_page
from unitsphere.report.kinds.transfer import transfer_page
from unitsphere.report.runs import Folders, Json, document, is_run, listed, runs_below
from unitsphere.training.folder import CONFIG
from unitsphere.training.recipes import no_run, recipe_names

RESULTS, SUMMARY = "results.json", "summary.json"

KINDS: dict[str, Callable[[Json, Path], Page]] = {
    "ablate": ablate_page,
    "compare": compare_page,
    "context": context_page,
    "finetune": finetune_page,
    "ladder": ladder_page,
    "league": league_page,
    "quantize": quantize_page,
    "quickstart": quickstart_page,
    "lr-ramp": ramp_page,
    "sweep": sweep_page,
    "transfer": transfer_page,
}
"""Kind of study -> the function that builds its page from its results and its folder."""

OLD_KINDS = {
    "speedups": "compare",
    "search": "sweep",
    "table": "ablate",
    "divergence": "lr-ramp",
    "tokens_per_parameter": "ladder",
    "best_lr": "finetune",
    "contexts": "context",
    "rounded": "quantize",
    "samples": "quickstart",
}
"""For results written before they named their kind: a key that only one kind has."""


def kind_of(found: Json) -> str | None:
    """The kind of a study's results; None for any other document."""
    old = next((kind for key, kind in OLD_KINDS.items() if key in found), None)
    return found.get("kind", old)


def page_of(folders: Folders) -> Page:
    """The page of a run, a study, or a folder of runs; of several folders their runs together.

    Raises UserError for a folder that is none of these, or whose results have another version's
    form.
    """
    with as_user_errors(folders):
        several = listed(folders)
        for folder in several:
            if not folder.is_dir():
                if folder.as_posix() in recipe_names():
                    raise UserError(no_run(folder))
                raise UserError(f"there is no folder {folder}: give a run's or a study's")
        return chosen_page(several) if len(several) > 1 else folder_page(several[0])


@contextmanager
def as_user_errors(folders: Folders) -> Iterator[None]:
    """Raise a `UserError` for whatever fails because a JSON file there has another form."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        names = ", ".join(map(str, listed(folders)))
        raise UserError(
            f"cannot make a page of {names}: a JSON file there has another form than this version "
            f"writes ({type(error).__name__}: {error})"
        ) from error


def folder_page(folder: Path) -> Page:
    """The page of one folder."""
    for name in (RESULTS, SUMMARY):
        found = document(folder / name)
        if kind_of(found) is not None:
            return study_page(found, folder)
    if "data_sha256" in document(folder / CONFIG):
        return finetune_page({}, folder)  # still training
    if is_run(folder):
        return run_page(folder)
    if runs_below(folder):
        return several_page(folder)
    raise UserError(f"{folder} has no run and no study: there is nothing to report")


def study_page(found: Json, folder: Path) -> Page:
    """The page of a study's results.

    Raises UserError for a kind that this version does not know, or results without what its page
    needs.
    """
    kind = kind_of(found)
    if kind not in KINDS:
        raise UserError(
            f"the results in {folder} are of kind {kind!r}, which this version does not know (it "
            f"knows {', '.join(KINDS)})"
        )
    try:
        return KINDS[kind](found, folder)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"the results in {folder} are of another version ({type(error).__name__}: {error}): "
            "run the study's command again, which keeps its finished runs"
        ) from error
