"""The same tasks by this package and, from the export, by lm-evaluation-harness's own backend.

    python benchmarks/harness_parity.py RUN TASK_DATA CONTEXT [LIMIT]

CONTEXT: tokens that the model sees of an item, at least those of the longest answer. Prints a
Markdown table: items, how many have the same answer in every metric, the largest difference
between two log-likelihoods, and both accuracies with their standard errors.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
import unitsphere
from unitsphere.cli import main
from unitsphere.inference.lm_eval_model import HarnessLM
from unitsphere.inference.lm_eval_tasks import figures, run_tasks
from unitsphere.report.render.text import markdown_table


def numbers(answers: Any) -> list[float]:
    """Every log-likelihood in an item's nested answers."""
    if isinstance(answers, list | tuple):
        return [number for answer in answers for number in numbers(answer)]
    return [float(answers)]


def row(task: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """A task's cells."""
    mine, other = (
        sorted(found["samples"][task], key=lambda item: item["doc_id"]) for found in (ours, theirs)
    )
    pairs = list(zip(mine, other, strict=True))
    same = sum(all(a.get(m) == b.get(m) for m in ("acc", "acc_norm")) for a, b in pairs)
    far = max(
        abs(x - y)
        for a, b in pairs
        for x, y in zip(numbers(a["resps"]), numbers(b["resps"]), strict=True)
    )
    cells = [task, str(len(pairs)), str(same), f"{far:.1e}"]
    for found in (ours, theirs):
        acc = figures(found)[task]["metrics"]["acc"]
        cells.append(f"{acc['value']:.4f} ± {acc['standard_error']:.4f}")
    return cells


def compare(run: Path, data: str, context: int, limit: int | None) -> str:
    """The table for a run folder and a folder of JSONL files."""
    from lm_eval.models.huggingface import HFLM

    loaded = unitsphere.load(run)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "hf")
        assert main(["export", str(run), "--out", str(out)]) == 0
        hf = HFLM(str(out), device="cpu", batch_size=16, max_length=context, trust_remote_code=True)
        lm = HarnessLM(loaded.model.float(), loaded.tokenizer, context)
        ours, theirs = (
            run_tasks(each, ["zero_shot"], data=data, limit=limit, samples=True)
            for each in (lm, hf)
        )
    head = ["task", "items", "same answer", "largest difference", "unitsphere", "harness's backend"]
    return markdown_table(head, [row(task, ours, theirs) for task in sorted(ours["samples"])])


if __name__ == "__main__":
    run, data, context, *limit = sys.argv[1:]
    print(compare(Path(run), data, int(context), int(limit[0]) if limit else None))
