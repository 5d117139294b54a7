"""Results of a run: JSON, a page and an archive, each replaced as a whole after each row."""

import fcntl
import json
import os
import tarfile

import report

WIDTH = 20
# What two runs must have in common for the second to go on with the first.
IDENTITY = ("commit", "scale", "selection", "gpu", "uuid", "driver", "driver_kind")
# A row with one of these results is not run again.
KEPT = ("held", "FAILED", "measured")


class Results:
    """The results so far; a killed kit leaves those of the completed rows."""

    def __init__(self, folder, name, logs, head):
        self.folder, self.logs = folder, logs
        self.all = {**head, "name": name, "finished": False, "rows": {}}

    @property
    def name(self):
        return self.all["name"]

    @property
    def archive(self):
        return self.folder / f"{self.name}.tar.gz"

    def go_on(self):
        """Takes over the newest unfinished run of the same kind; returns the rows it kept."""
        for file in sorted(self.folder.glob("cgpu-gpu-kit-*.json"), reverse=True):
            try:
                before = json.loads(file.read_text())
                same = all(before[key] == self.all[key] for key in IDENTITY)
            except (OSError, ValueError, KeyError):
                # Another version's, or incomplete.
                continue
            if same and not before["finished"]:
                self.all = before
                self.all["suspect"] = before.pop("running", None)
                self.unpack_logs()
                rows = before["rows"].items()
                return {name for name, row in rows if row["result"] in KEPT and is_done(row)}
        return set()

    def unpack_logs(self):
        """Takes the earlier part's logs from its archive, so that the next archive has all."""
        if not self.archive.exists():
            return
        with tarfile.open(self.archive) as archive:
            for member in archive:
                if member.isfile() and member.name.startswith(f"{self.name}/logs/"):
                    to = self.logs / os.path.basename(member.name)
                    if not to.exists():
                        to.write_bytes(archive.extractfile(member).read())

    def begin(self, name):
        """Records which row runs: after a crash of the machine it is the suspect."""
        self.all["running"] = name
        self.write()

    def add(self, name, row):
        self.all["rows"][name] = row
        self.all.pop("running", None)
        self.write()

    def finish(self):
        self.all["finished"] = all(map(is_done, self.all["rows"].values()))
        self.write()

    def write(self):
        text, page = json.dumps(self.all, indent=1) + "\n", report.page(self.all)
        replace(self.folder / f"{self.name}.json", lambda path: path.write_text(text))
        replace(self.folder / f"{self.name}.html", lambda path: path.write_text(page))
        replace(self.archive, self.pack)

    def pack(self, path):
        with tarfile.open(path, "w:gz") as archive:
            archive.add(self.folder / f"{self.name}.json", f"{self.name}/results.json")
            archive.add(self.folder / f"{self.name}.html", f"{self.name}/report.html")
            archive.add(self.logs, f"{self.name}/logs")

    def count(self, result):
        return report.counts(self.all["rows"])[result]


def is_done(row):
    """Returns whether a row ended by itself: not because the run was stopped or out of time."""
    return not row.get("unfinished", False)


def locked(folder):
    """Returns a lock on the folder of results, or None while another kit has it."""
    lock = open(folder / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def line(name, row):
    """One row of the table."""
    if row["result"] == "not possible":
        return f"{name:<{WIDTH}}{report.told(row)}"
    left = f"; COULD NOT END {', '.join(row['left_running'])}" if "left_running" in row else ""
    told = f"{row['result']:<9} {report.told(row)}{left}  [{row['seconds']} s]"
    return f"{name:<{WIDTH}}{told}"


def replace(path, write):
    """Writes another file first and renames it: a reader never finds half of it."""
    fresh = path.with_name(path.name + ".new")
    write(fresh)
    os.replace(fresh, path)
