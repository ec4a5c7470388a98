"""What a folder is, and the page of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from unitsphere.errors import UserError
from unitsphere.report.document import Page
from unitsphere.report.kinds.ablate import ablate_page
from unitsphere.report.kinds.compare import compare_page
from unitsphere.report.kinds.finetune import finetune_page
from unitsphere.report.kinds.ladder import ladder_page
from unitsphere.report.kinds.quickstart import quickstart_page
from unitsphere.report.kinds.ramp import ramp_page
from unitsphere.report.kinds.run import run_page
from unitsphere.report.kinds.runs import chosen_page, several_page
from unitsphere.report.kinds.sweep import sweep_page
from unitsphere.report.runs import Folders, Json, document, is_run, listed, runs_below
from unitsphere.training.folder import CONFIG

RESULTS, SUMMARY = "results.json", "summary.json"
STUDIES: dict[str, Callable[[Path, Json], Page]] = {
    "speedups": compare_page,
    "search": sweep_page,
    "table": ablate_page,
    "divergence": ramp_page,
    "tokens_per_parameter": ladder_page,
    "best_lr": finetune_page,
}
"""A key of results.json that no other study has, and the page of that study."""


def page_of(folders: Folders) -> Page:
    """The page of a run, a study, or a folder of runs; of several the runs beside each other.

    Raises UserError for a folder that is none, or whose results are another version's.
    """
    with retold_shapes(folders):
        return found_page(listed(folders))


@contextmanager
def retold_shapes(folders: Folders) -> Iterator[None]:
    """What fails because a file holds JSON of another shape, as a `UserError`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        names = ", ".join(map(str, listed(folders)))
        raise UserError(
            f"cannot make a page of {names}: a JSON file there has another shape than this version "
            f"writes ({type(error).__name__}: {error})"
        ) from error


def found_page(several: list[Path]) -> Page:
    """`page_of`, which retells what goes wrong."""
    for folder in several:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: give a run's or a study's")
    if len(several) > 1:
        return chosen_page(several)
    folder = several[0]
    found = document(folder / RESULTS)
    for key, page in STUDIES.items():
        if key in found:
            return told(page, folder, found)
    if "data_sha256" in document(folder / CONFIG):
        return finetune_page(folder, {})
    summary = document(folder / SUMMARY)
    if "arms" in summary:
        return told(quickstart_page, folder, summary)
    if is_run(folder):
        return run_page(folder)
    if runs_below(folder):
        return several_page(folder)
    raise UserError(f"{folder} holds no run and no study: there is nothing to report")


def told(page: Callable[[Path, Json], Page], folder: Path, found: Json) -> Page:
    """The page, or a `UserError` if the results lack what it reads."""
    try:
        return page(folder, found)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"the results in {folder} are of another version ({type(error).__name__}: {error}): "
            "run the study's command again, which keeps its finished runs"
        ) from error
