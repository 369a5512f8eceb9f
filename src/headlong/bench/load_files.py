"""The folder of a load: results.json, requests.csv, report.html.

In:  the log and the document, finished or cut short. Out: files.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headlong.bench.load_html import make_load_report
from headlong.bench.report_files import REPORT, RESULTS, refuse_used, unwritable, write_whole
from headlong.bench.rows import COLUMNS

REQUESTS = "requests.csv"
REQUEST_COLUMNS = ("level", "pair", "ending", "began_s", *COLUMNS)


class LoadFolder:
    """Writes one load into one folder."""

    def __init__(self, path: Path) -> None:
        """Make the folder; refuse one that holds an older measurement."""
        self.path = path
        refuse_used(path, REQUESTS)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / REQUESTS).touch()
        except OSError as error:
            raise unwritable(path, error) from error

    def finish(self, document: Mapping[str, Any], requests: Sequence[Mapping[str, str]]) -> None:
        """Write everything there is to say."""
        try:
            with (self.path / REQUESTS).open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, REQUEST_COLUMNS)
                writer.writeheader()
                writer.writerows(requests)
            write_whole(self.path / REPORT, make_load_report(document))
            write_whole(self.path / RESULTS, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from error
