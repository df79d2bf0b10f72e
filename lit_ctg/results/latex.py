"""Tables for LaTeX: ``longtable`` with booktabs' rules; why a cell is empty is told once, below the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_ctg.results.cell_text import REGIME_TITLES, flat

if TYPE_CHECKING:
    from lit_ctg.results.table import Table

PREAMBLE = "% needs \\usepackage{array,booktabs,longtable}, and a wide page (\\usepackage[landscape]{geometry})"
# longer values (generated texts) and verdicts wrap in a column of their share of the line
_WRAPPED = 24

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    "\N{MINUS SIGN}": "$-$",
    "\N{EM DASH}": "---",
    "\n": " ",
}


def escape_latex(text: str) -> str:
    """Return ``text`` so that LaTeX prints its characters and runs none of them."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def latex_table(table: Table) -> str:
    """Return a table with its notes; holes are numbered, what is missing is told below."""
    reasons: list[str] = []
    header, lines = flat(table, reasons)
    first = 1 + table.has_printed
    columns, rules = _columns(table, lines, first), _rules(table, first)
    groups = " & ".join(rf"\multicolumn{{4}}{{c}}{{{REGIME_TITLES[regime]}}}" for regime in table.regimes)
    names = " & ".join(header[:first] + ["Value", "$n$", r"95\% interval", "Verdict"] * len(table.regimes))
    head = [r"\toprule", rf"{'& ' * first}{groups} \\ {rules}", rf"{names} \\", r"\midrule"]
    notes = [*table.notes, *(f"({number}) {reason}." for number, reason in enumerate(reasons, start=1))]
    return "\n".join(
        [
            PREAMBLE,
            r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{columns}}}",
            rf"\caption{{{escape_latex(table.title)}}} \\",
            *head,
            r"\endfirsthead",
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *(_line(line, len(header)) for line in lines),
            r"\end{longtable}",
            *(rf"\noindent {escape_latex(note)}\par" for note in notes),
            r"\endgroup",
            "",
        ]
    )


def _columns(table: Table, lines: list[list[str]], first: int) -> str:
    """Return the columns: words wrap, numbers do not."""
    widest = [max((len(line[i]) for line in lines if len(line) > i and len(set(line[1:])) > 1), default=0)
              for i in range(first + 4 * len(table.regimes))]  # fmt: skip
    spec = _wrapped(0.2) + (_wrapped(0.1) if first > 1 and widest[1] > _WRAPPED else "r" * (first - 1))
    for index in range(len(table.regimes)):
        value = widest[first + 4 * index]
        spec += (_wrapped(0.16) if value > _WRAPPED else "r") + "rc" + _wrapped(0.11)
    return spec


def _wrapped(share: float) -> str:
    return rf">{{\raggedright\arraybackslash}}p{{{share:g}\linewidth}}"


def _rules(table: Table, first: int) -> str:
    return " ".join(rf"\cmidrule(lr){{{first + 1 + 4 * i}-{first + 4 + 4 * i}}}" for i in range(len(table.regimes)))


def _line(line: list[str], columns: int) -> str:
    words = [escape_latex(word) for word in line]
    if len(words) == 1:
        return rf"\addlinespace \multicolumn{{{columns}}}{{l}}{{\emph{{{words[0]}}}}} \\"
    if not any(words[1:]):  # rows that were not run, told in one line
        return rf"\multicolumn{{{columns}}}{{{_wrapped(0.95)}}}{{{words[0]}}} \\"
    # a row that begins with "[" would be read as an argument of the \\ before it
    words = [f"{{{word}}}" if word.startswith("[") else word for word in words]
    return " & ".join(words) + r" \\"
