"""Results of a run: a JSON file and an archive, both replaced as a whole after each row."""

import json
import os
import tarfile

WIDTH = 15


class Results:
    """The results so far; a killed kit leaves those of the completed rows."""

    def __init__(self, folder, name, logs, head):
        self.file, self.archive = folder / f"{name}.json", folder / f"{name}.tar.gz"
        self.name, self.logs = name, logs
        self.all = {**head, "finished": False, "rows": {}}

    def add(self, name, row):
        self.all["rows"][name] = row
        self.write()

    def finish(self):
        self.all["finished"] = True
        self.write()

    def write(self):
        replace(self.file, lambda path: path.write_text(json.dumps(self.all, indent=1) + "\n"))
        replace(self.archive, self.pack)

    def pack(self, path):
        with tarfile.open(path, "w:gz") as archive:
            archive.add(self.file, f"{self.name}/results.json")
            archive.add(self.logs, f"{self.name}/logs")

    def count(self, result):
        return sum(row["result"] == result for row in self.all["rows"].values())


def line(name, row):
    """One row of the table."""
    if row["result"] == "not possible":
        return f"{name:<{WIDTH}}not possible here, because {row['because']}"
    told = row.get("error") or row["figure"]
    left = f"; COULD NOT END {', '.join(row['left_running'])}" if "left_running" in row else ""
    return f"{name:<{WIDTH}}{row['result']:<9} {told}{left}  [{row['seconds']} s]"


def replace(path, write):
    """Writes another file first and renames it: a reader never finds half of it."""
    fresh = path.with_name(path.name + ".new")
    write(fresh)
    os.replace(fresh, path)
