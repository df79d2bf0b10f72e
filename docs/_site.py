"""What `make docs` does beside MkDocs: pages from outside docs/, links between them, the reference from docstrings.

In the repository README.md, CONTRIBUTING.md, CHANGELOG.md and experiments/ lie beside docs/, and pages link to them and
to code as they lie there. In the site they lie together; a link to what the site has not (code) becomes its path.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
# a fence or code between backquotes is no place for links
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)


def beside() -> list[str]:
    """Return the files of the repository outside docs/ that the site has, by their path."""
    found = [path for pattern in ("*/*.md", "*/figures/*.svg") for path in sorted((ROOT / "experiments").glob(pattern))]
    return [*OUTSIDE, *(path.relative_to(ROOT).as_posix() for path in found)]


def in_site(path: str) -> str | None:
    """Return where a file of the repository lies in the site; None where it is not in it."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        # a folder of notebooks has a page that lists them
        if (ROOT / path).is_dir():
            place = f"{path.removeprefix('docs/')}/index.md"
            return place if place in notebook_lists() else None
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    return path if path in beside() else None


def in_repository(path: str) -> str:
    """Return where a page of the site lies in the repository."""
    return "README.md" if path == "index.md" else path if path in beside() else f"docs/{path}"


def relinked(text: str, page: str) -> str:
    """Return a page's text with links that hold in the site.

    Args:
        text: Markdown as it lies in the repository.
        page: its path in the site.
    """
    here = posixpath.dirname(in_repository(page))

    def link(found: re.Match[str]) -> str:
        mark, words, target, anchor = found.groups()
        if not target or "://" in target or target.startswith(("mailto:", "data:")):
            return found[0]
        there = in_site(posixpath.normpath(posixpath.join(here, target)))
        if there is None:
            path = posixpath.normpath(posixpath.join(here, target))
            return words if words.startswith("`") else f"`{path}`" if words == path else f"{words} (`{path}`)"
        return f"{mark}[{words}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor or ''})"

    parts, at = [], 0
    for code in CODE.finditer(text):
        # a link whose words are code holds the code inside
        if code[0].startswith("```"):
            parts += [LINK.sub(link, text[at : code.start()]), code[0]]
            at = code.end()
    return "".join([*parts, LINK.sub(link, text[at:])])


def reference() -> dict[str, str]:
    """Return path -> text of the reference: a page for each folder of the package, of all modules with public names."""
    package = ROOT / "lit_ctg"
    folders: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if path.name.startswith("_") or "skeleton" in parts:
            continue
        folder = ".".join(parts[:2] if parts[0] == "papers" else parts[:1]) if len(parts) > 1 else "lit_ctg"
        folders.setdefault(folder, []).append(".".join(("lit_ctg", *parts)))
    pages = {
        f"reference/{folder}.md": f"# {folder}\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"
        for folder, modules in folders.items()
    }
    lines = [f"- [{folder}]({folder}.md): {len(modules)} modules" for folder, modules in folders.items()]
    pages["reference/index.md"] = "# Reference\n\nFrom the docstrings.\n\n" + "\n".join(lines) + "\n"
    return pages


def notebooks() -> dict[str, Path]:
    """Return the notebooks of docs/ by their place in the site."""
    found = sorted((ROOT / "docs").rglob("*.ipynb"))
    return {str(in_site(path.relative_to(ROOT).as_posix())): path for path in found}


def notebook_lists() -> dict[str, str]:
    """Return path -> text of a page for each folder of notebooks: their titles, as links."""
    lists: dict[str, str] = {}
    for place, notebook in notebooks().items():
        folder, _, name = place.rpartition("/")
        if folder:
            title = page_of(notebook).splitlines()[0].lstrip("# ")
            lists.setdefault(f"{folder}/index.md", "# Notebooks\n\n")
            lists[f"{folder}/index.md"] += f"- [{title}]({name})\n"
    return lists


def page_of(notebook: Path) -> str:
    """Return a notebook with what its cells printed as Markdown."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                svg = "".join(data["image/svg+xml"]).encode()
                parts.append(f"![{_described(svg)}](data:image/svg+xml;base64,{base64.b64encode(svg).decode()})")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _described(svg: bytes) -> str:
    """Return what a picture says of itself to screen readers."""
    found = re.search(r'aria-label="([^"]*)"', svg.decode())
    return found[1].translate(str.maketrans("[]", "()")) if found else "picture"


def on_files(files: Any, config: Any) -> Any:
    """MkDocs: add what lies beside docs/, and the reference."""
    from mkdocs.structure.files import File

    for path in beside():
        files.append(File.generated(config, in_site(path) or path, abs_src_path=str(ROOT / path)))
    for place, notebook in notebooks().items():
        files.append(File.generated(config, place, content=page_of(notebook)))
    for path, text in {**notebook_lists(), **reference()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """MkDocs: make the links of a page hold in the site."""
    path = page.file.src_uri
    return markdown if path.startswith("reference/") else relinked(markdown, path)
