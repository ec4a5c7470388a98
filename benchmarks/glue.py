"""A run on GLUE's four tasks, with the same model from random weights and the majority class.

    python benchmarks/glue.py runs/mlm DATA --out runs/glue --markdown docs/results/glue.md

DATA holds glue_sst2_val.jsonl, glue_mrpc_val.jsonl, glue_rte_val.jsonl and cola_in_domain_dev.tsv:
validation splits, of which 64% train, 16% choose the rate and 20% are reported (`unitsphere
finetune` without --test). The same command resumes after a stop; the table has what is finished.
"""

import argparse
from pathlib import Path
from typing import Any

from unitsphere.finetune import FinetuneConfig, finetune
from unitsphere.report.render.text import markdown_table

FILES = {
    "cola": "cola_in_domain_dev.tsv",
    "sst2": "glue_sst2_val.jsonl",
    "mrpc": "glue_mrpc_val.jsonl",
    "rte": "glue_rte_val.jsonl",
}
HEAD = ("task", "arm", "train / tune / test", "rate", "accuracy", "F1", "Matthews")
SCORES = ("accuracy", "f1", "matthews")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="run folder of a masked language model")
    parser.add_argument("data", type=Path, help="folder of the four files")
    parser.add_argument("--out", type=Path, default=Path("runs/glue"))
    parser.add_argument("--markdown", type=Path, help="file to write the table to")
    parser.add_argument("--tasks", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--lr", nargs="+", type=float, default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for task in options.tasks:
        found = {arm: arm_of(options, task, arm) for arm in ("pre-trained", "random weights")}
        rows += task_rows(task, found)
        text = report(options, markdown_table(HEAD, rows), found["pre-trained"])
        print(text)
        if options.markdown:
            options.markdown.write_text(text, encoding="utf-8")


def arm_of(options: argparse.Namespace, task: Any, arm: str) -> dict[str, Any]:
    """The results of one task from the run's weights, or from random ones."""
    scratch = arm == "random weights"
    config = FinetuneConfig(
        run=options.run,
        data=str(options.data / FILES[task]),
        task=task,
        lr=tuple(options.lr),
        seed=tuple(options.seeds),
        epochs=options.epochs,
        batch=options.batch,
        scratch=scratch,
        device="cpu",
    )
    return finetune(config, options.out / (f"{task}-scratch" if scratch else task))


def task_rows(task: str, found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The table's rows of one task: the majority class, then the arms."""
    first = found["pre-trained"]
    sizes = " / ".join(str(first["examples"][part]) for part in ("train", "tune", "test"))
    majority = [f"{100 * first['test']['majority'][score]:.1f}" for score in SCORES]
    rows = [[task, "majority class", sizes, "", *majority]]
    for arm, results in found.items():
        at_edge = f" ({results['edge']})" if results["edge"] else ""
        cells = [cell(results["test"]["scores"][score]) for score in SCORES]
        rows.append(["", arm, "", f"{results['best_lr']:g}{at_edge}", *cells])
    return rows


def cell(mean: dict[str, Any]) -> str:
    """A mean and its standard error in hundredths."""
    error = mean["standard_error"]
    return f"{100 * mean['mean']:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def report(options: argparse.Namespace, table: str, results: dict[str, Any]) -> str:
    ran, sizes = results["environment"], f"--epochs {options.epochs} --batch {options.batch}"
    rates = " ".join(f"{lr:g}" for lr in options.lr)
    seeds = " ".join(map(str, options.seeds))
    return f"""# A masked language model on GLUE

Parts of the validation splits: 64% trains, 16% chooses the rate, 20% is reported. So these figures
are not comparable with GLUE's. Scores × 100, mean ± standard error over {len(options.seeds)} seeds.
"lowest" and "highest": the best rate is an end of those tried. The test parts are small: sampling
them has an error of its own, √(p(1 − p)/n), about 4 points at n = 150.

{table}
- Command: `python benchmarks/glue.py RUN DATA {sizes} --lr {rates} --seeds {seeds}`
- Commit: {ran["commit"]}
- Machine: {ran["cpu"]}, {ran["threads"]} thread, torch {ran["packages"]["torch"]}
"""


if __name__ == "__main__":
    main()
