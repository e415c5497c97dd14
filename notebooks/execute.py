"""Run the notebooks and keep their outputs: python notebooks/execute.py [NAME.ipynb ...]

What is kept is what a page without a kernel can show: texts and pictures (smaller ones). No ids of widgets, no times
of execution, so that a notebook changes only where its content does; and no pages of reports, which are of half a
megabyte and which GitHub would not show.
"""

from __future__ import annotations

import io
import sys
from base64 import b64decode, b64encode
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).resolve().parent
NAMES = sorted(path.name for path in HERE.glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"
SECONDS = 120  # that a cell may take
MOST_HTML = 50_000  # characters of an output


def execute(name: str) -> nbformat.NotebookNode:
    """A notebook run from its first cell to its last, in its folder; an error is raised."""
    notebook = nbformat.read(HERE / name, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute()
    return cleaned(notebook)


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what only a kernel or one machine can make sense of."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for at, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{at}"
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data.pop(WIDGET, None)
            if len(data.get("text/html", "")) > MOST_HTML:
                del data["text/html"]
            if "image/png" in data:
                data["image/png"] = smaller(data["image/png"])
    return notebook


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Text that was printed in one go is one output, however it happened to arrive."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        before = kept[-1] if kept else None
        if before is not None and output.get("name") == before.get("name") == "stdout":
            before.text += output.text
        else:
            kept.append(output)
    return kept


def smaller(png: str) -> str:
    """The same picture in base64 with a palette of 256 colours: a third of the size."""
    picture = Image.open(io.BytesIO(b64decode(png))).convert("RGB")
    stream = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(stream, "png", optimize=True)
    return b64encode(stream.getvalue()).decode()


if __name__ == "__main__":
    for wanted in sys.argv[1:] or NAMES:
        done = execute(Path(wanted).name)
        nbformat.validate(done)
        nbformat.write(done, HERE / Path(wanted).name)
        print(wanted)
