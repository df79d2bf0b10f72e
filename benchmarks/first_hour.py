"""The first hour of a new user: a fresh clone, the README's commands, own texts; minutes to the first controlled text.

    python benchmarks/first_hour.py            # with the packages of this interpreter
    python benchmarks/first_hour.py venv=true  # with an environment of its own, by make venv

SmolLM2 is in the cache, or is fetched. Every command is from README.md, or the command before has printed it. The exit
code is 1 where a command fails, prints no text, or the first controlled text took longer than ten minutes.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lit_ctg.data.sample_text import sample_documents

ROOT, LIMIT = Path(__file__).resolve().parents[1], 10.0
# texts of the user, from a part of the sample that no control of the package has read
TEXTS = 200
# of the commands of README.md that are run: up to the first controlled text, and after it
FIRST = ("model get smollm2", "generate model=smollm2", "control make")
AFTER = ("control list", "data info", "train experiment=control_code", "generate experiment=control_code")


def readme_command(readme: str, beginning: str) -> str:
    """Return the first command of the README that begins like this."""
    found = re.search(rf"lit-ctg {re.escape(beginning)}[^`\n]*", readme)
    if found is None:
        raise SystemExit(f"README.md has no command 'lit-ctg {beginning} ...'")
    return found[0]


def write_texts(folder: Path) -> None:
    """Write reviews with stars as reviews.csv, and as a folder ``texts`` with a file for few and for many stars."""
    reviews = [each for each in sample_documents("reviews", "val", source="yelp", size=12_000) if "stars" in each.meta]
    with open(folder / "reviews.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "stars"), *((each.text, each.meta["stars"]) for each in reviews[:TEXTS])])
    (folder / "texts").mkdir()
    for label, stars in {"kitchen": (1, 2), "harbour": (4, 5)}.items():
        own = [each.text for each in reviews[:TEXTS] if each.meta["stars"] in stars]
        (folder / "texts" / f"{label}.txt").write_text("\n\n".join(own), encoding="utf-8")


def main(venv: bool) -> int:
    began = time.monotonic()

    def say(words: str) -> None:
        print(f"{(time.monotonic() - began) / 60:5.1f} min  {words}", flush=True)

    with tempfile.TemporaryDirectory(prefix="first_hour_") as name:
        clone = Path(name) / "lit_ctg"
        subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", clone], check=True)
        programs = clone / ".venv" / "bin" if venv else Path(sys.executable).parent
        if venv:
            subprocess.run(["make", "venv"], cwd=clone, check=True)
            say("make venv")
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(clone)}
        readme, failed = (clone / "README.md").read_text(encoding="utf-8"), list[str]()

        def run(command: str) -> str:
            say(f"$ {command}")
            done = subprocess.run(shlex.split(command), cwd=clone, env=environment, capture_output=True, text=True)
            print(done.stdout + done.stderr, end="", flush=True)
            if done.returncode or not done.stdout.strip():
                failed.append(command)
            return done.stdout

        write_texts(clone)
        *_, made = [run(readme_command(readme, beginning)) for beginning in FIRST]
        following = re.findall(r"^\w+: (lit-ctg generate .*)$", made, re.M)
        text = run(following[-1].replace("prompt=...", "'prompt=The place'")) if following else ""
        minutes = (time.monotonic() - began) / 60
        say("the first controlled text of own labels" if text.strip() else "no text of own labels")
        for beginning in AFTER:
            run(readme_command(readme, beginning))
        say(f"done; the first controlled text after {minutes:.1f} minutes (at most {LIMIT:g})")
        for command in failed:
            say(f"failed: {command}")
        return int(bool(failed) or not text.strip() or minutes > LIMIT)


if __name__ == "__main__":
    sys.exit(main("venv=true" in sys.argv[1:]))
