"""`unitsphere report`: one self-contained HTML page of a run or a study."""

from unitsphere.report.page.write import build, write_page

__all__ = ["build", "write_page"]
