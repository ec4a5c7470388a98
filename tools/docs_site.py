"""What `make docs` adds to the pages of docs/ (mkdocs calls these functions by their names).

- Generated pages: the Python reference from docstrings, every configuration key from the config
  dataclasses and the recipes, every verb from its help, the notebooks, README, CHANGELOG and
  CONTRIBUTING.
- Links that leave docs/ become links to the project's address, if the file exists. Any other dead
  link is a warning of mkdocs, and so an error.
- A public name without a docstring, and a key without a meaning, is an error.
- The script that searches without a server is the site's own, and nothing is loaded from elsewhere.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

import reference_pages  # noqa: E402 - tools/ is on the path now
from notebooks import NOTEBOOKS, as_markdown  # noqa: E402

WORKER = "assets/javascripts/iframe-worker.js"
MODULES = ["unitsphere", "unitsphere.nn", "unitsphere.optim", "unitsphere.trainer"]
COPIED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the repository's top folder, and where they stand in the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and name the pages of each `FOLDER/*` of the navigation."""
    for path, text in generated(config):
        files.append(File.generated(config, path, content=text))
    script = (ROOT / "tools/iframe-worker.js").read_text(encoding="utf-8")
    files.append(File.generated(config, WORKER, content=script))
    pages = sorted(file.src_uri for file in files.documentation_pages())
    named = set(names_of(config.nav))
    config.nav = expanded(config.nav, [page for page in pages if page not in named])
    return files


def generated(config: MkDocsConfig) -> Iterator[tuple[str, str]]:
    """Path in the site -> Markdown of every generated page."""
    for name, path in COPIED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"^\[!\[.*\n", "", text, flags=re.M)  # badges are pictures from elsewhere
        yield path, rewritten(text, "", "docs", config.repo_url or "")
    for name in MODULES:
        yield f"reference/api/{name}.md", api_page(name)
    for name, text in reference_pages.config_pages().items():
        yield f"reference/config/{name}.md", text
    yield "reference/verbs.md", reference_pages.verbs_page()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = rewritten(as_markdown(notebook), NOTEBOOKS, "docs/notebooks", config.repo_url or "")
        yield f"notebooks/{notebook.stem}.md", text


NAMED_HERE = ["show_root_heading: false", "show_root_toc_entry: false", "heading_level: 3"]
"""The heading of a name is the page's: it may be defined elsewhere."""


def api_page(module: str) -> str:
    """The page of a public module: what it says itself, then each name that it offers."""
    found = importlib.import_module(module)
    lines = [f"# {module}", "", inspect.cleandoc(found.__doc__ or "")]
    for name in sorted(set(found.__all__) - {"__version__"}):
        object_ = getattr(found, name)
        if inspect.ismodule(object_):
            lines += ["", f"`{name}`: [a page of its own]({object_.__name__}.md)."]
            continue
        if not inspect.getdoc(object_):
            raise PluginError(f"{module}.{name} is public and has no docstring")
        home = object_.__module__ if hasattr(object_, "__module__") else module
        shown = getattr(object_, "__qualname__", name)
        lines += ["", f"## {module}.{name}", "", f"::: {home}.{shown}", "    options:"]
        lines += [f"      {option}" for option in NAMED_HERE]
    return "\n".join(lines) + "\n"


def names_of(nav: Any) -> Iterator[str]:
    """The paths in a navigation, in its order."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from names_of(value)
    else:
        for item in nav or ():
            yield from names_of(item)


def expanded(nav: Any, free: list[str]) -> Any:
    """The navigation with each `FOLDER/*` replaced by the pages of that folder in `free`."""
    if isinstance(nav, str):
        if not nav.endswith("*"):
            return nav
        folder = nav.removesuffix("*")
        return [page for page in free if page.startswith(folder) and in_reach(page, folder)]
    if isinstance(nav, dict):
        return {title: expanded(value, free) for title, value in nav.items()}
    found: list[Any] = []
    for item in nav:
        made = expanded(item, free)
        if isinstance(made, dict) and [] in made.values():
            continue  # a folder without further pages
        found += made if isinstance(made, list) else [made]
    return found


def in_reach(page: str, folder: str) -> bool:
    """Whether `*` of the top folder stands for a page: not those of the folders below it."""
    return bool(folder) or "/" not in page


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links that leave docs/ to the project's address."""
    if page.file.generated_by:
        return markdown
    folder = Path("docs", page.file.src_uri).parent
    return rewritten(markdown, folder, folder, config.repo_url or "")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take the search's worker from the site; PluginError for anything loaded from elsewhere."""
    output = with_own_worker(output, get_relative_url(WORKER, page.url))
    if found := re.search(r'<(?:script|img|iframe)\b[^>]*\ssrc="https?:[^"]*"', output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {found[0]}")
    return output


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for 404.html, which mkdocs does not count as a page."""
    return with_own_worker(output_content, f"/{WORKER}")


def with_own_worker(output: str, worker: str) -> str:
    """A page that loads the search's worker from the site."""
    return re.sub(r'src="https?:[^"]*/iframe-worker/shim"', f'src="{worker}"', output)


def rewritten(markdown: str, folder: Path | str, place: Path | str, address: str) -> str:
    """A page of `folder` in the repository, with the links of one that stands in `place`."""

    def replace(match: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(ROOT, folder, match[1]))
        if not os.path.exists(path):
            return match[0]  # dead: mkdocs says so
        path, anchor = os.path.relpath(path, ROOT), match[2] or ""
        page = in_site(path)
        if page is None:
            return f"]({address}/blob/main/{path}{anchor})"
        return f"]({os.path.relpath(page, place)}{anchor})"

    return re.sub(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)", replace, markdown)


def in_site(path: str) -> str | None:
    """Where a file of the repository stands in the site, below docs; None: it is no page of it."""
    if path in COPIED:
        return f"docs/{COPIED[path]}"
    if path.endswith(".ipynb"):
        return f"docs/notebooks/{Path(path).stem}.md"
    return path if path.startswith("docs/") and (ROOT / path).is_file() else None
