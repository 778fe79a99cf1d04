"""Tables for papers: LaTeX with booktabs, every name escaped, notes below the table."""

from __future__ import annotations

from raysuite.report.sheet import Sheet

_SAFE = {
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
    '"': r"\textquotedbl{}",
    # behind \\ these would be read as its options
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "\0": "{}",
    "\n": " ",
    "\u00a0": "~",
    "–": "--",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "²": r"\textsuperscript{2}",
    "µ": r"\textmu{}",
}


def latex_text(content: str) -> str:
    """Text that LaTeX sets as it is; letters beyond ASCII stay, as UTF-8."""
    content = content.replace("--", "-\0-")  # two hyphens would become a dash
    return "".join(_SAFE.get(character, character) for character in content)


def latex(sheet: Sheet) -> str:
    """The whole table as a float; its preamble needs `booktabs` and, for quotes, T1 fonts."""
    columns = "".join("r" if title in sheet.numbers else "l" for title in sheet.header)
    head, *lines = (
        " & ".join(latex_text(cell) for cell in cells) + r" \\"
        for cells in (sheet.header, *sheet.cells)
    )
    notes = [rf"  {latex_text(note)}\par" for note in sheet.notes]
    return "\n".join(
        [
            r"% \usepackage{booktabs}  \usepackage[T1]{fontenc}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex_text(sheet.title)}}}",
            rf"  \label{{tab:{sheet.name}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {head}",
            r"    \midrule",
            *(f"    {line}" for line in lines),
            r"    \bottomrule",
            r"  \end{tabular}",
            *([r"  \par\medskip\footnotesize\raggedright", *notes] if notes else []),
            r"\end{table}",
            "",
        ]
    )
