"""Rows of several cases: each is held, FAILED or not possible, and stops no other."""

from processes import Failed, NotPossible


def held():
    return {"result": "held"}


def failed(because):
    return {"result": "FAILED", "because": because}


def not_possible(because):
    return {"result": "not possible", "because": because}


def tried(run):
    """Returns the result of a function that checks one case: its figures, if it is held."""
    try:
        return {**held(), **(run() or {})}
    except NotPossible as reason:
        return not_possible(str(reason))
    except Failed as reason:
        return failed(str(reason))


def collected(results):
    """Returns the row of these cases; it is not possible if none is."""
    if all(one["result"] == "not possible" for one in results.values()):
        raise NotPossible("; ".join(sorted({one["because"] for one in results.values()})))
    return {
        "ok": not any(one["result"] == "FAILED" for one in results.values()),
        "figure": ", ".join(f"{title} {one['result']}" for title, one in results.items()),
        "cases": results,
    }
