"""Hooks of the documentation site: pages that are outside of `docs/`, notebooks as pages, and links between them.

The pages link to each other as files of the repository, so that they read well without the site too. The hooks change
these links into links between pages. Of a link to a file that is not part of the site, they leave the text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXECUTED = ROOT / "build" / "notebooks"  # `docs/run_notebooks.py` writes them there
ROOT_PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "report-a-fault.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the repository's root, and each notebook as a page with its pictures."""
    from mkdocs.structure.files import File

    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def notebook_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, with its pictures by name. The freshly executed one is preferred to the stored one."""
    from nbconvert import MarkdownExporter

    executed = EXECUTED / notebook.name
    text, resources = MarkdownExporter().from_filename(str(executed if executed.exists() else notebook))
    pictures = {}
    for name, content in resources.get("outputs", {}).items():
        own = f"{notebook.stem}-{name}"
        text = text.replace(f"]({name})", f"]({own})")
        pictures[own] = content
    return text, pictures


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points the links of one page at the pages of the site."""
    place = page.file.src_uri
    known = {file.src_uri for file in files if file.inclusion.is_included()}
    source = {page: name for name, page in ROOT_PAGES.items()}.get(place, f"docs/{place}")
    pieces = CODE.split(markdown)  # every second piece is code
    return "".join(piece if at % 2 else relinked(piece, source, place, known) for at, piece in enumerate(pieces))


def relinked(text: str, source: str, place: str, known: set[str]) -> str:
    """The text of the page `place`, with links of the site. They were relative to `source`, a file of the repository."""

    def one(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        wanted = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if wanted not in known:
            return words
        return f"{picture}[{words}]({posixpath.relpath(wanted, posixpath.dirname(place) or '.')}{mark}{anchor})"

    return LINK.sub(one, text)


def site_path(path: str) -> str:
    """The page of the site for a file of the repository, or its path unchanged."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    inside = path.removeprefix("docs/") if path.startswith("docs/") else path
    return inside.removesuffix(".ipynb") + ".md" if inside.endswith(".ipynb") else inside
