"""What a reproduction leaves: text, tables and plots, as Markdown and as a page of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gemrl import pages
from gemrl.data.storage import write_text
from gemrl.evaluate import results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of text cells, the first column to the left and the others to the right."""

    caption: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Plot:
    """A picture with its caption, which also stands for it where it cannot be seen."""

    caption: str
    figure: "Figure"


@dataclass
class Document:
    """A title and parts in reading order; a string is a paragraph."""

    title: str
    parts: list[str | Table | Plot] = field(default_factory=list)

    def add(self, *parts: str | Table | Plot | None) -> "Document":
        """Add parts at the end, leaving out those that are None."""
        self.parts += [part for part in parts if part is not None]
        return self


def write(document: Document, folder: Path, name: str) -> list[Path]:
    """Write NAME.md with its pictures beside it, and NAME.html with them inside."""
    from gemrl.evaluate.pictures import inline

    texts = [f"# {document.title}"]
    shown: list[dict[str, object]] = []
    written = [folder / f"{name}.md", folder / f"{name}.html"]
    for number, part in enumerate(document.parts):
        if isinstance(part, str):
            texts.append(part)
            shown.append({"text": part})
        elif isinstance(part, Table):
            texts += [f"**{part.caption}**", results.table(part.headings, part.lines)]
            shown.append({"table": part})
        else:
            picture = folder / f"{name}-{number}.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            part.figure.savefig(picture, dpi=90, bbox_inches="tight", facecolor="white")
            texts.append(f"![{part.caption}]({picture.name})\n\n*{part.caption}*")
            shown.append({"picture": inline(part.figure), "caption": part.caption})
            written.append(picture)
    write_text(written[0], "\n\n".join(texts) + "\n")
    pages.write_page(
        "gemrl.evaluate.reproduce",
        "page.html.jinja",
        written[1],
        lambda: {"title": document.title, "parts": shown},
    )
    return written
