"""The report of the committed records as a browser shows it: drawn, silent, and no wider than a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lit_ctg.results.report import write_report

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# the report may run no script, so a page around it looks at it: everything unfolded, in a frame as wide as a phone
LOOK = """<!doctype html><meta charset="utf-8"><pre id="found"></pre>
<iframe id="page" width="390" height="800" srcdoc="{page}"></iframe>
<script>
const keys = ".key i, .share, .share i";
// coloured by their background, which browsers leave out of print unless told otherwise
const unprinted = page => [...page.querySelectorAll(keys)].filter(
  one => page.defaultView.getComputedStyle(one).printColorAdjust !== "exact").length;
const started = performance.now(), frame = document.getElementById("page");
frame.onload = () => {
  const loaded = performance.now(), page = frame.contentDocument;
  const folded = page.documentElement.scrollHeight;
  for (const one of page.querySelectorAll("details")) one.open = true;
  const pictures = [...page.querySelectorAll("svg")];
  const cut = pictures.flatMap(svg => [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect(), frame = svg.getBoundingClientRect();  // turned labels, too
    const unit = frame.width / svg.viewBox.baseVal.width;
    return box.left < frame.left - unit || box.right > frame.right + unit
      || box.top < frame.top - 2 * unit || box.bottom > frame.bottom + 4 * unit;
  }).map(text => text.textContent));
  const visible = svg => svg.getBoundingClientRect().width > 200 && svg.getBBox().height > 30;
  const marks = svg => svg.querySelectorAll(".printed, .corrected, .as_published, [class^=series]").length;
  document.getElementById("found").textContent = JSON.stringify({
    seconds: (loaded - started) / 1000, pictures: pictures.length, cut: cut,
    empty: pictures.filter(svg => !visible(svg) || !marks(svg)).map(svg => svg.getAttribute("aria-label")),
    unnamed: pictures.filter(svg => !svg.getAttribute("aria-label").trim()).length,
    tallest: Math.max(...pictures.map(svg => svg.viewBox.baseVal.height)),
    unprinted: unprinted(page),
    width: page.documentElement.scrollWidth, folded: folded, height: page.documentElement.scrollHeight,
  });
};
</script>"""


def chromium(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    start = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([*start, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def browse(page: Path, folder: Path) -> tuple[str, list[str]]:
    """Return the page after its scripts ran, and what it wrote to the console."""
    done = chromium(folder, "--enable-logging=stderr", "--window-size=1280,1000", "--dump-dom", page.as_uri())
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_the_report_of_the_committed_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = write_report(tmp_path / "report.html", "all", records=[EXPERIMENTS], root=EXPERIMENTS)
    assert report.stat().st_size < 6_500_000  # it grows with the records
    look = tmp_path / "look.html"
    look.write_text(LOOK.replace("{page}", html.escape(report.read_text(encoding="utf-8"))), encoding="utf-8")
    shown, console = browse(look, tmp_path)
    match = re.search(r'<pre id="found">(.*?)</pre>', shown, re.S)
    assert match is not None
    found = json.loads(html.unescape(match[1]))
    print(f"loaded in {found['seconds']:.2f} s")  # under 2 s on a quiet machine; noise is no defect
    assert console == []
    assert found["pictures"] > 40
    assert found["empty"] == [] and found["unnamed"] == 0 and found["cut"] == []
    assert found["tallest"] < 1000
    assert found["unprinted"] == 0
    assert found["width"] <= 390
    # it grows by a line or two with every size that a paper was run at
    assert found["folded"] < 7500 < found["height"], "a phone shows the verdicts first, the papers folded"
    paper = tmp_path / "report.pdf"
    chromium(tmp_path, f"--print-to-pdf={paper}", report.as_uri())
    assert 2 < len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) < 40, "paper has the answers and the claims"


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_the_look_sees_defects(tmp_path: Path) -> None:
    """So that silence above means something."""
    bad = '<meta charset="utf-8"><div style="width:700px">wide</div><svg aria-label=" " viewBox="0 0 460 80"></svg>'
    bad += '<div class="key"><i style="background: red"></i></div>'
    bad += '<svg aria-label="a" viewBox="0 0 460 80"><text x="400" y="20">a title that is cut at the frame</text></svg>'
    look = tmp_path / "look.html"
    look.write_text(LOOK.replace("{page}", html.escape(bad)) + "<script>console.error('seen')</script>", "utf-8")
    shown, console = browse(look, tmp_path)
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', shown, re.S)[1]))
    assert len(console) == 1 and "seen" in console[0]
    assert found["width"] > 390 and found["unnamed"] == 1 and found["unprinted"] == 1 and len(found["empty"]) == 2
    assert found["cut"] == ["a title that is cut at the frame"]
