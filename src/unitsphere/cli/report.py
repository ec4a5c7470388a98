"""`unitsphere report`: one HTML page of a run or a study, as a file or served while it trains."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from unitsphere.cli.output import print_json
from unitsphere.cli.parse import parse
from unitsphere.cli.scores import check_needs
from unitsphere.errors import UserError
from unitsphere.report.render.text import harmless

PORT = 8321
"""That of --serve if none is given."""


@dataclasses.dataclass(frozen=True)
class Report:
    """One self-contained HTML page of a run, several runs, a fine-tuning or a study.

    The answer first, then curves, tables, probes, samples, what differs between
    the arms, the environment, and the commands that reproduce it. The page
    needs no network; a run that still trains or misses files has a page too.

    examples:
      unitsphere report runs/quickstart
      unitsphere report runs/first --serve
      unitsphere report runs/ngpt runs/gpt --playground --out page.html
      unitsphere report runs/ngpt runs/gpt runs/ngpt-long --out page.html
      unitsphere report runs/compare-quickstart --figures figures --out page.html
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN_OR_STUDY [RUN …]")]
    """a run folder, a study folder, or a folder of runs; several: all runs on one page"""
    out: Annotated[Path | None, arg(metavar="FILE")] = None
    """the page; by default report.html in the folder, for several folders in the working folder"""
    figures: Annotated[Path | None, arg(metavar="DIR")] = None
    """draw every figure there too, as SVG and PNG"""
    samples: int = 0
    """number of texts that the last checkpoint of a run writes for the page"""
    playground: bool = False
    """put the models of the runs on the page, where a reader writes with them (as
    int8: 1.4 bytes of the page for each parameter)"""
    serve: bool = False
    """serve the page on this machine only, always the latest, until Ctrl-C"""
    port: int | None = None
    """port of --serve, by default 8321; 0: any free port"""
    json: bool = False
    """print one JSON document"""


def run(argv: list[str]) -> int:
    """Write the page, or serve it."""
    args = parse(Report, argv, "report")
    check_needs(args, "serve", "port")
    port = PORT if args.port is None else args.port
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be from 0 to 65535: {port}")
    if args.samples < 0:
        raise UserError(f"--samples must be at least 0: {args.samples}")
    if args.serve:
        if args.json or args.out or args.figures or args.samples:
            raise UserError(
                "--serve writes nothing: leave --out, --figures, --samples and --json out"
            )
        if args.playground:
            raise UserError("--serve shows no model: write a page with --playground instead")
        from unitsphere.report.serve import serve

        serve(args.folders, port)
        return 0
    from unitsphere.report.write import write_page

    written = write_page(args.folders, args.out, args.figures, args.samples, args.playground)
    if args.json:
        print_json(written.record())
    else:
        for line in filter(None, (written.page.answer, written.page.unfinished)):
            print(harmless(line))
        print(written.path)
        if written.figures:
            count = len(written.figures)
            print(f"{count} figures as SVG and PNG in {args.figures}", file=sys.stderr)
    return 0
