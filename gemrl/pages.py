"""Self-contained HTML pages out of a template and what it shows."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from gemrl.data.storage import write_text
from gemrl.errors import DataError, MissingExtraError


def write_page(
    package: str, template: str, out: Path, values: Callable[[], dict[str, Any]]
) -> Path:
    """Write a package's template with what `values` gives, and return the page's path."""
    try:
        import matplotlib  # noqa: F401  # For the pictures among the values.
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise MissingExtraError(
            "the page needs jinja2 and matplotlib; install gemrl[report]"
        ) from error
    source = files(package).joinpath(template).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    text = environment.from_string(source).render(**values())
    try:
        write_text(out, text)
    except OSError as error:  # It names the temporary file.
        raise DataError(f"cannot write {out}: {error.strerror}") from error
    return out
