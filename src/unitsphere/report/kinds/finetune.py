"""The page of a fine-tuning."""

from pathlib import Path

from unitsphere.config import flatten
from unitsphere.report.document import (
    Block,
    Commands,
    Figure,
    Figures,
    Folded,
    Page,
    Section,
    Table,
    Text,
    banded,
)
from unitsphere.report.numbers import duration, known
from unitsphere.report.runs import Json, document, shortened, value_text
from unitsphere.report.sections.settings import page_commands
from unitsphere.training.folder import CONFIG


def finetune_page(found: Json, folder: Path) -> Page:
    """What a fine-tuning found; `found` is empty while it still trains."""
    settings = document(folder / CONFIG)
    rows = [[key, value_text(value)] for key, value in flatten(settings).items()]
    told: list[Block] = [
        Folded(f"Every key ({len(rows)})", [Table("Every key", ["key", "value"], rows)])
    ]
    commands: list[Block] = [Commands(page_commands(str(folder)))]
    sections = [
        Section("settings", "Settings", told, detail=True),
        Section(
            "environment",
            "Environment and commands",
            [*commits(found), *commands],
            detail=True,
        ),
    ]
    if not found:
        parts = list((folder / "parts").glob("*.tune.json"))
        return Page(
            title=folder.resolve().name,
            kind="Fine-tuning",
            answer=f"There is no result yet: {len(parts)} rates and seeds are trained.",
            facts=data_facts(settings),
            unfinished="Not finished: still choosing the rate",
            sections=sections,
        )
    task = found["task"] or folder.resolve().name  # without --task: the file's name, or --out's
    return Page(
        title=folder.resolve().name,
        kind=f"Fine-tuning · {task}",
        answer=answer(found, task),
        facts=[*data_facts(settings), *facts(found)],
        caveats=caveats(found),
        sections=[Section("results", "Results", results(found)), *sections],
    )


def answer(found: Json, task: str) -> str:
    """The deciding score on the test part with its standard error, and the majority class's."""
    metric = found["metric"]
    score, majority = found["test"]["scores"][metric], found["test"]["majority"][metric]
    seeds = len(found["test"]["seeds"])
    if score is None:
        return f"{task}: no {metric} on the test part."
    error = score.get("standard_error")
    spread = (
        "one seed, no interval"
        if error is None
        else f"± {error:.3f}, standard error over {seeds} seeds"
    )
    against = (
        "" if majority is None else f"; always guessing the commonest class scores {majority:.3f}"
    )
    return f"{task}: {metric} {score['mean']:.3f} on the test part ({spread}){against}."


def data_facts(settings: Json) -> list[tuple[str, str]]:
    """The file of the examples, and the tokenizer of the run."""
    model = settings.get("model", {}).get("data", {})
    told = [("data", settings.get("data")), ("tokenizer", model.get("tokenizer"))]
    return [(name, shortened(value)) for name, value in told if isinstance(value, str)]


def facts(found: Json) -> list[tuple[str, str]]:
    """Scores, the rate and the examples."""
    scores = [
        (name, f"{score['mean']:.3f}")
        for name, score in found["test"]["scores"].items()
        if score is not None
    ]
    sizes = [(f"{part} examples", f"{count:,}") for part, count in found["examples"].items()]
    return [*scores, ("best rate", f"{found['best_lr']:g}"), *sizes]


def caveats(found: Json) -> list[str]:
    """What a reader must know of the figures."""
    lines = []
    if found["edge"]:
        lines.append(
            f"{found['best_lr']:g} is the {found['edge']} rate tried: a better one may lie beyond "
            "(--lr)."
        )
    if found["truncated"]:
        lines.append(f"{found['truncated']:,} examples were truncated to the model's length.")
    overlap = found["test_examples_in_training"]
    if overlap:
        lines.append(f"{overlap:,} test examples are also in the training or tune part.")
    return lines


def results(found: Json) -> list[Block]:
    """Scores by rate and by seed."""
    metric = found["metric"]
    rates = [
        [
            f"{rate['lr']:g}",
            score(rate["tune"]),
            known(rate["tune_loss"], ".4f"),
        ]
        for rate in found["rates"]
    ]
    seeds = [
        [
            str(each["seed"]),
            *(known(each[m], ".3f") for m in METRICS),
            known(each["loss"], ".4f"),
        ]
        for each in found["test"]["seeds"]
    ]
    tuned = [rate for rate in found["rates"] if rate["tune"] is not None]
    points: dict[int, list[tuple[float, float | None]]] = {}
    for rate in tuned:
        for each in rate["seeds"]:
            tune = each["tune"][metric] if each["tune"] else None
            points.setdefault(each["seed"], []).append((rate["lr"], tune))
    lines = []
    for colour, (seed, told) in enumerate(points.items()):
        lrs, scores = zip(*told, strict=True)
        lines.append(banded(f"seed {seed}", "lr", lrs, scores, colour))
    figure = Figure(
        name="rates",
        title="The choice of the rate",
        y=f"{metric} on the tune part",
        xs={"lr": "learning rate"},
        series=lines,
        caption="One line per seed; the test part is not used for this choice.",
        log_x=True,
    )
    title = f"Test part: {found['examples']['test']:,} examples at {found['best_lr']:g}"
    return [
        *([Figures([figure])] if lines else []),
        Table(title, ["score", "mean ± standard error", "majority class"], test_rows(found)),
        Table("Test part, by seed", ["seed", *METRICS, "loss"], seeds),
        Table("Tune part, by rate", ["rate", metric, "loss"], rates),
    ]


METRICS = ("accuracy", "f1", "matthews")


def test_rows(found: Json) -> list[list[str]]:
    """The mean of each score over the seeds, and of always guessing the commonest class."""
    test = found["test"]
    return [
        [name, score(mean), known(test["majority"][name], ".3f")]
        for name, mean in test["scores"].items()
        if mean is not None
    ]


def score(mean: Json | None) -> str:
    """A mean with its standard error."""
    if mean is None:
        return "–"
    error = mean.get("standard_error")
    return f"{mean['mean']:.3f}" if error is None else f"{mean['mean']:.3f} ± {error:.3f}"


def commits(found: Json) -> list[Block]:
    """The commit that each training ran with, and how long it took."""
    rows = [
        [
            f"{rate['lr']:g}",
            str(each["seed"]),
            duration(each["seconds"]),
            str(each["commit"] or "–"),
        ]
        for rate in found.get("rates", [])
        for each in rate["seeds"]
    ]
    if not rows:
        return [Text(["There is no result yet."])]
    return [Table("Trainings", ["rate", "seed", "time", "commit"], rows)]
