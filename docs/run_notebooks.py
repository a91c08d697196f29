"""Executes the notebooks: `python docs/run_notebooks.py` into build/notebooks, with `--store` also in place.

A cell that fails ends the command with status 1.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
EXECUTED = HERE.parent / "build" / "notebooks"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, run in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    return tidy(notebook)


def tidy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs between machines: times, versions, progress and paths of temporary folders."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output["text"] = re.sub(r"/tmp/tmp\w+/", "", output["text"])
    return notebook


def main() -> None:
    store = "--store" in sys.argv[1:]
    EXECUTED.mkdir(parents=True, exist_ok=True)
    for path in sorted((HERE / "notebooks").glob("*.ipynb")):
        start = time.perf_counter()
        text = json.dumps(executed(path), indent=1, ensure_ascii=False) + "\n"
        for target in (EXECUTED / path.name, *((path,) if store else ())):
            target.write_text(text, encoding="utf-8")
        print(f"{path.name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
