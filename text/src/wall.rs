//! Words for what holds a container's memory limit, and for why the driver does not.

/// Names in data, and their words. Other names are words themselves.
const WORDS: [(&str, &str); 14] = [
    ("driver_except_managed", "driver, except managed memory"),
    ("off", "switched off in monitor.toml"),
    ("old_driver", "driver older than r615"),
    ("not_supported", "not supported by the driver"),
    ("no_nvml", "NVML does not answer"),
    ("version_1", "control groups of version 1"),
    ("no_own_group", "no control group of its own"),
    ("no_dmem", "no dmem in an ancestor's subtree_control"),
    ("not_found", "control group unknown to the driver"),
    ("mig", "MIG instance"),
    ("refused", "refused by the driver"),
    ("not_registered", "first process unknown"),
    ("pending", "no answer of the driver yet"),
    ("released", "the container ends"),
];

/// Stands beside a limit that the driver forgets when no program uses the GPU and no monitor runs.
pub const FORGOTTEN: &str = "persistence mode off";

/// Returns the words for a name. A name of another release stands for itself.
#[must_use]
pub fn words(name: &str) -> &str {
    WORDS.iter().find(|(known, _)| *known == name).map_or(name, |(_, words)| *words)
}

/// Returns what holds a limit: the state and, if the shim holds it alone, the reason.
#[must_use]
pub fn held_by(state: &str, absent: Option<&str>) -> String {
    let state = words(state);
    absent.map_or_else(|| state.to_owned(), |absent| format!("{state} ({})", words(absent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_said_in_words() {
        assert_eq!(held_by("driver_except_managed", None), "driver, except managed memory");
        assert_eq!(held_by("shim", Some("old_driver")), "shim (driver older than r615)");
        assert_eq!(held_by("later", Some("newer")), "later (newer)", "names of another release");
    }

    #[test]
    fn monitoring_page_lists_every_name() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring.md");
        let page = std::fs::read_to_string(page).expect("the page");
        for (name, words) in &WORDS[1..] {
            assert!(page.contains(&format!("\n| `{name}` | {words} |")), "{name}: {words}");
        }
    }
}
