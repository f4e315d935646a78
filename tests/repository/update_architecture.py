"""Updates docs/architecture.md with the measured call paths, and the drawing docs/packages.svg: `make call-paths`."""

from __future__ import annotations

from . import call_paths, package_drawing


def main() -> None:
    """Write both files. A file that is up to date stays as it is."""
    before = call_paths.ARCHITECTURE.read_text(encoding="utf-8")
    after = call_paths.updated(before)
    if after != before:
        call_paths.ARCHITECTURE.write_text(after, encoding="utf-8")
    package_drawing.DRAWING.write_text(package_drawing.drawn(), encoding="utf-8")


if __name__ == "__main__":
    main()
