"""The program that loads plugins one by one: `python -m rlinf_core.checkup.load FILE KIND:NAME...`

Each leaves a line of JSON in the file. Where the process ends before its time, the one behind the last line
is to blame.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlinf_core.errors import PluginError, summary
from rlinf_core.plugins import plugins


def main() -> None:
    """Load what the command line names."""
    with Path(sys.argv[1]).open("a") as told:
        for word in sys.argv[2:]:
            kind, _, name = word.partition(":")
            print(json.dumps({"of": word, **_load(kind, name)}), file=told, flush=True)


def _load(kind: str, name: str) -> dict[str, str]:
    try:
        plugins().get(kind, name).load()
    except (Exception, SystemExit) as err:  # the border of a plugin's code, which may do anything
        cause = err.__cause__ if isinstance(err, PluginError) and err.__cause__ is not None else err
        if isinstance(cause, ImportError):
            return {"error": str(cause), "module": (cause.name or "").partition(".")[0]}
        return {"error": summary(cause), "module": ""}
    return {"error": ""}


if __name__ == "__main__":
    main()
