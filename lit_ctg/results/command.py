"""The words of `lit-ctg table|report|verify|reproduce`: `key=value` pairs into a mapping, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence

from lit_ctg.errors import UserError, did_you_mean


def settings(words: Sequence[str], command: str, known: Sequence[str]) -> dict[str, str]:
    """Return ``{key: value}`` of words such as ``paper=nslm``; the first word without a key is the paper.

    ``--key value`` and ``--key=value`` are read as ``key=value``, ``--dry-run`` as ``dry_run=true``; ``debug=true``
    is the command line's own and left out. A key that stands twice has its values joined by a comma.

    Raises:
        UserError: a key that the command does not know, or one without a value.
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and not equals:
            if key == "dry-run":
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise UserError(f"lit-ctg {command}: {word} needs a value")
        elif not equals:
            key, value = "paper", word
        key = key.replace("-", "_")
        if key == "debug":
            continue
        if key not in known:
            raise UserError(
                f"lit-ctg {command}: no setting '{key}'{did_you_mean(key, known)}; one of {', '.join(known)}"
            )
        found[key] = f"{found[key]},{value}" if key in found else value
    return found


def folders(value: str | None) -> list[str] | None:
    """Return the folders of ``records=one,two``, None where nothing is given."""
    return [part for part in value.split(",") if part] if value else None
