"""The pages: links lead somewhere, commands run, words and sentences keep to the targets; the site needs no MkDocs."""

from __future__ import annotations

import base64
import functools
import posixpath
import re
from pathlib import Path
from types import ModuleType

import pytest

from lit_ctg.config import compose, experiments
from lit_ctg.errors import UserError
from tests.pages import examples, module_at, run_page

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*/*.md")])
CODE = re.compile(r"^```.*?^```", re.S | re.M)
PAPERS_PAGES = [path.name for path in ROOT.glob("docs/papers/*.md")]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return module_at(ROOT / "docs" / "_site.py")


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings as GitHub and MkDocs make them."""
    found: set[str] = set()
    for line in CODE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if heading := re.match(r"#+ +(.*)", line):
            words = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading[1]).lower()
            found.add(re.sub(r" +", "-", re.sub(r"[^\w\- ]", "", words).strip()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert dead == []


# own_words.md: tests/papers/semantic_fusion/test_own_words.py; the README: test_readme.py
COMMANDS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.stem != "own_words"]
COMMANDS = [page for page in COMMANDS if any(one.runs_here for one in examples(page.read_text(encoding="utf-8")))]


@pytest.mark.long
@pytest.mark.parametrize("page", COMMANDS, ids=lambda path: path.stem)
def test_the_commands_of_a_page_run_and_print_what_it_shows(
    page: Path, run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    assert run_page(page.read_text(encoding="utf-8"), run_cli, tmp_path)


def test_commands_are_found() -> None:
    assert {page.stem for page in COMMANDS} >= {"your_data", "sweeps", "data", "verdicts", "architecture"}


PROSE = [page for page in PAGES if page.name != "tables.md"]
MOST_WORDS = {"README.md": 1_100, "CHANGELOG.md": 1_500, "verdicts.md": 1_100, **dict.fromkeys(PAPERS_PAGES, 1_600)}


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    return module_at(ROOT / "tools" / "prose.py")


@pytest.mark.parametrize("page", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_are_short(page: Path, prose: ModuleType) -> None:
    """The targets of plain English: `make prose` prints where a page is."""
    text = page.read_text(encoding="utf-8")
    lengths = [len(words) for words in prose.sentences(text)]
    assert sum(lengths) <= 18 * len(lengths)
    assert sum(length > prose.LONG for length in lengths) <= 0.04 * len(lengths)
    assert max(lengths) <= 45
    assert len(text.split()) <= MOST_WORDS.get(page.name, 2_000)


def test_all_pages_can_be_read_in_an_hour_and_a_half() -> None:
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PROSE) <= 22_000
    assert len(list((ROOT / "docs").rglob("*.md"))) <= 16


@pytest.mark.long
@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/papers/*.md")), ids=lambda path: path.stem)
def test_the_options_that_a_papers_page_names_compose(page: Path) -> None:
    """With a plus sign where the configuration has no value; in at least one experiment of the paper."""
    own = sorted(name for name in experiments() if name.startswith(f"{page.stem}/"))
    own.sort(key=lambda name: not name.endswith("/main"))
    groups = "model|decoding|backbone|trainer|callback|data|metric"
    options = set(re.findall(rf"`(\+?(?:{groups})\.[\w.]+=[^`\s<>]+)`", page.read_text(encoding="utf-8")))
    assert [option for option in sorted(options) if not any(map(functools.partial(_composes, option), own))] == []


def _composes(option: str, experiment: str) -> bool:
    try:
        compose([f"experiment={experiment}", option])
    except UserError:
        return False
    return True


def test_the_tests_that_pages_name_are_there() -> None:
    """A deviation stands on its paper's page with the test that shows it; ``...`` cuts a name short."""
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")]
    functions = {
        name for file in files for name in re.findall(r"^def (test_\w+)", (ROOT / file).read_text("utf-8"), re.M)
    }
    named = 0
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"(?<![\w.])(?:tests/[\w/]*)?test_\w+(?:\.py|\.\.\.)?", text):
            named += 1
            if name.endswith(".py"):
                known = any(file == name or ("/" not in name and file.endswith(f"/{name}")) for file in files)
            elif name.endswith("..."):
                known = any(function.startswith(name.removesuffix("...")) for function in functions)
            else:
                known = name in functions
            assert known, f"{page.relative_to(ROOT)} names {name}"
    assert named > 40


def test_a_setting_that_differs_between_the_regimes_names_its_deviation() -> None:
    """Its line in conf/ says "# deviation 3", and "of <paper>" where the path does not name the paper."""
    entries = {}
    for page in (ROOT / "docs" / "papers").glob("*.md"):
        section = page.read_text("utf-8").partition("## Deviations")[2].partition("\n## ")[0]
        entries[page.stem] = set(re.findall(r"^(\d+)\. ", section, re.M))
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        file = path.relative_to(ROOT / "conf").as_posix()
        for line in path.read_text("utf-8").splitlines():
            if "by_regime" in line.partition(" #")[0] and not line.lstrip().startswith("#"):
                said = re.search(r"#.*\bdeviation (\d+)(?: of (\w+))?", line)
                assert said is not None, f"{file} names no deviation: {line}"
                paper = said[2] or next((name for name in entries if name in file), "")
                assert said[1] in entries.get(paper, ()), f"{file}: no such deviation: {line}"


def test_pages_are_found() -> None:
    assert len(PAGES) > 15


def test_notebooks_are_pages(site: ModuleType) -> None:
    page = site.page_of(ROOT / "docs" / "tour.ipynb")
    assert page.startswith("# The tour") and page.count("```python") > 5 and page.count("```") % 2 == 0
    assert site.relinked("[a](tour.ipynb)", "your_data.md") == "[a](tour.md)"
    page = site.relinked(site.page_of(ROOT / "docs" / "notebooks" / "nslm.ipynb"), "notebooks/nslm.md")
    picture = re.search(r"!\[([^\]]*)\]\(data:image/svg\+xml;base64,([\w+/=]+)\)", page)
    assert picture is not None and picture[1] == "The next year: probability by year"
    assert base64.b64decode(picture[2]).startswith(b"<svg") and "[here](../papers/nslm.md)" in page


def test_links_hold_in_the_site(site: ModuleType) -> None:
    text = "[a](docs/data.md#hub) [b](lit_ctg/cli.py) [c](https://x.y) ![d](experiments/nslm/figures/headline.svg)"
    assert site.relinked(text, "index.md") == (
        "[a](data.md#hub) b (`lit_ctg/cli.py`) [c](https://x.y) ![d](experiments/nslm/figures/headline.svg)"
    )
    text = "[a](../../experiments/nslm/tables.md) [b](../data.md) [README](../../README.md)\n```\n[x](y.md)\n```\n"
    assert site.relinked(text, "papers/nslm.md") == (
        "[a](../experiments/nslm/tables.md) [b](../data.md) [README](../index.md)\n```\n[x](y.md)\n```\n"
    )
    assert site.relinked("[a](../../docs/data.md)", "experiments/nslm/tables.md") == "[a](../../data.md)"
    # a path as its own words is told once
    assert site.relinked("[conf/data](../conf/data)", "data.md") == "`conf/data`"


def test_a_folder_of_notebooks_has_a_page(site: ModuleType) -> None:
    assert site.relinked("[a](docs/notebooks/)", "index.md") == "[a](notebooks/index.md)"
    (lists,) = site.notebook_lists().values()
    assert re.findall(r"\]\((\w+)\.md\)", lists) == [path.stem for path in sorted((ROOT / "docs/notebooks").glob("*"))]


def test_every_link_of_a_page_is_a_page_of_the_site(site: ModuleType) -> None:
    """What `make docs` would refuse, and formulas, which the site does not draw."""
    made = {site.in_site(path) for path in site.beside()} | set(site.reference()) | set(site.notebook_lists())
    pages = {site.in_site(page.relative_to(ROOT).as_posix()): page.read_text(encoding="utf-8") for page in PAGES}
    pages |= {place: site.page_of(notebook) for place, notebook in site.notebooks().items()}
    for place, text in pages.items():
        shown = site.CODE.sub("", text)
        assert not re.search(r"\$\S[^$\n]*[\\_^{][^$\n]*\$", shown), place
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", site.CODE.sub("", site.relinked(text, place))):
            if "://" in target or target.startswith(("mailto:", "data:")):
                continue
            there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
            assert there in made or there in pages or (ROOT / "docs" / there).is_file(), f"{place}: {target}"


def test_the_reference_has_every_public_module(site: ModuleType) -> None:
    text = "\n".join(site.reference().values())
    for module in ("lit_ctg.core.generation", "lit_ctg.papers.graphmax.solver", "lit_ctg.figure"):
        assert f"::: {module}\n" in text
    assert ".__init__" not in text and "skeleton" not in text


def test_every_page_of_the_navigation_is_in_the_site(site: ModuleType) -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    made = {site.in_site(path) for path in site.beside()} | set(site.reference()) | set(site.notebooks())
    named = re.findall(r": ([\w/]+\.md)$", text, re.M)
    assert len(named) > 15
    assert [page for page in named if page not in made and not (ROOT / "docs" / page).is_file()] == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/papers/*.md")), ids=lambda path: path.stem)
def test_the_code_that_a_papers_page_names_is_there(page: Path) -> None:
    """`file.py: name`, `name`: below the paper's folder, else below the package."""
    named = re.findall(r"`([\w/]+\.py): (\w+)`((?:, `\w+`)*)", page.read_text(encoding="utf-8"))
    assert len(named) > 8
    for file, first, rest in named:
        place = ROOT / "lit_ctg" / "papers" / page.stem / file
        text = (place if place.exists() else ROOT / "lit_ctg" / file).read_text(encoding="utf-8")
        missing = [
            name for name in [first, *re.findall(r"\w+", rest)] if not re.search(rf"^(class|def) {name}\b", text, re.M)
        ]
        assert missing == [], file


def test_the_snippet_of_graphmax_runs() -> None:
    import torch

    page = (ROOT / "docs" / "papers" / "graphmax.md").read_text(encoding="utf-8")
    torch.manual_seed(0)
    sequences = torch.randint(0, 20, (10, 30)).tolist()
    names: dict[str, object] = {"sequences_of_ids": sequences, "vocab_size": 20, "logits_BV": torch.randn(2, 20)}
    exec(page.partition("```python\n")[2].partition("```")[0], names)  # a page of ours
    assert (names["gap_B"] < 1e-5).all() and callable(names["rule"])
