"""`unitsphere inspect`: the papers' probes at every checkpoint of a run."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json, print_table
from unitsphere.cli.parse import parse
from unitsphere.errors import UserError


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Look inside a run at each of its checkpoints: figures, and one JSON document.

    Condition numbers, eigen learning rates, norms by depth, gradients by layer,
    attention entropy and more: the figures of the nGPT, anGPT and NormFormer
    papers that look inside a model. Writes RUN/inspect/: inspect.json, and an SVG
    and a PNG for each probe. --list names them (docs/how-to/inspect.md).

    examples:
      unitsphere inspect runs/quickstart/ngpt
      unitsphere inspect RUN --probes condition_numbers logit_lens --steps 80 240
      unitsphere inspect RUN --against RUN2 --probes gradient_ratio --json
    """

    run: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    """the run folder"""
    probes: Annotated[tuple[str, ...], arg(metavar="NAME [NAME …]")] = ()
    """which probes; by default all"""
    steps: Annotated[tuple[int, ...], arg(metavar="N [N …]")] = ()
    """which checkpoints, 0: the start; by default all (a run keeps two; --train.keep_every keeps
    more)"""
    against: Annotated[Path | None, arg(metavar="RUN2")] = None
    """a second run: RUN's gradients are divided by its gradients"""
    data: Annotated[str | None, arg(metavar="FILE")] = None
    """text that the probes look at: a file, JSONL, a folder, or one that prepare made; by default
    the run's validation split (only for runs that you made)"""
    film: bool = False
    """write film.gif too: some of the probes, moving from checkpoint to checkpoint"""
    list: bool = False
    """only list the probes"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto: a GPU if there is one"""
    json: bool = False
    """print one JSON document instead of a table"""


def run(argv: list[str]) -> int:
    """Look, write and print."""
    args = parse(Inspect, argv, "inspect")
    if args.list:
        from unitsphere.inspection.probes import PROBES

        rows = [[name, probe.title, probe.source] for name, probe in PROBES.items()]
        print_table(("probe", "shows", "figure"), rows)
        return 0
    if args.run is None:
        raise UserError("inspect needs RUN; see `unitsphere inspect --help`")
    from unitsphere.report.inspect_run import inspect_run
    from unitsphere.report.kinds.inspection import FILMED
    from unitsphere.report.render.text import print_page
    from unitsphere.report.write import write_inspection

    found = inspect_run(args.run, args.probes, args.steps, args.against, args.device, args.data)
    page, files = write_inspection(found, args.run, moving=args.film)
    if args.film and not any(path.name == "film.gif" for path in files):
        print(f"no film: it needs two steps and one of {', '.join(FILMED)}", file=sys.stderr)
    if args.json:
        print_json(found)
        return 0
    print_page(page)
    print(*files, sep="\n")
    return 0
