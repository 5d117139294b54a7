"""The report of a run: one HTML page without other files, made from the results alone."""

import html

ORDER = ("FAILED", "held", "measured", "not possible")
STYLE = """
body { font: 14px/1.4 sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #111;
       background: #fff }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #ccc; padding: 3px 8px; text-align: left; vertical-align: top }
td:nth-child(4) { text-align: right; white-space: nowrap }
.FAILED { color: #b00020; font-weight: bold }
.held { color: #00600f }
.not { color: #555 }
@media print { body { margin: 0; font-size: 10px } }
"""


def told(row):
    """Returns what a row shows: its figure, its error, or the reason why it was not possible."""
    if row["result"] == "not possible":
        return f"not possible here, because {row['because']}"
    return row.get("error") or row["figure"]


def counts(rows):
    """Returns how many rows have each result."""
    return {result: sum(row["result"] == result for row in rows.values()) for result in ORDER}


def page(done):
    """Returns the page. Failed rows come first, in the order of the run within each result."""
    rows = sorted(done["rows"].items(), key=lambda item: ORDER.index(item[1]["result"]))
    counted = ", ".join(f"{number} {result}" for result, number in counts(done["rows"]).items())
    head = {
        "GPU": done["gpu"],
        "driver": f"{done['driver']} ({done['driver_kind']})",
        "kit": done["commit"],
        "begun": done["date"],
        "scale of times": done["scale"],
        "complete": "yes" if done["finished"] else "no: the same command goes on",
        "rows": counted,
    }
    loads = [row["load"] for row in done["rows"].values() if "load" in row]
    if loads:
        # A busy host takes time from tenants, and shares are missed.
        head["load of the host"] = f"{max(loads):.1f} at most, {done['processors']} processors"
    if done["driver_kind"] == "simulated":
        head["note"] = "The GPU is simulated: no figure here is one of a real GPU."
    facts = "".join(f"<tr><th>{escaped(name)}<td>{escaped(value)}" for name, value in head.items())
    lines = "".join(
        f'<tr><td>{escaped(name)}<td class="{row["result"].split()[0]}">{escaped(row["result"])}'
        f"<td>{escaped(told(row))}<td>{row['seconds']} s"
        for name, row in rows
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>cgpu on '
        f"{escaped(done['gpu'])}</title><style>{STYLE}</style><h1>cgpu on {escaped(done['gpu'])}"
        f"</h1><table>{facts}</table><h2>Rows</h2><table><tr><th>row<th>result<th>shows"
        f"<th>time{lines}</table>\n"
    )


def escaped(value):
    return html.escape(str(value))
