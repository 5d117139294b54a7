//! docs/support.md is generated from the tables: `BLESS=1 cargo test -p cgpu-abi --test support`
//! writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cgpu_abi::{DRIVER, NVML, Role, Treatment};

const ROLES: [(Role, &str); 13] = [
    (Role::Allocates, "Allocate memory"),
    (Role::Frees, "Free memory"),
    (Role::Reports, "Report memory and use"),
    (Role::Managed, "Managed memory"),
    (Role::Launches, "Launch"),
    (Role::Copies, "Copy and fill"),
    (Role::Context, "Contexts"),
    (Role::Module, "Modules and functions"),
    (Role::Stream, "Streams and events"),
    (Role::External, "Other processes, GPUs and interfaces"),
    (Role::Starts, "Start"),
    (Role::Routes, "Hand out functions"),
    (Role::Passes, "Everything else"),
];

const TREATMENTS: [(Treatment, &str, &str); 10] = [
    (
        Treatment::Charged,
        "charged",
        "taken from the container's limit before the call; out of memory when it does not fit",
    ),
    (Treatment::Refunded, "refunded", "given back to the limit when the call has succeeded"),
    (Treatment::Virtualised, "virtualised", "the answer shows the limit instead of the GPU"),
    (Treatment::Refused, "refused", "answers CUDA_ERROR_NOT_SUPPORTED, and is counted"),
    (Treatment::Gated, "gated", "waits for the container's turn"),
    (
        Treatment::Tracked,
        "tracked",
        "goes to the driver; the shim records what it means for the accounting",
    ),
    (Treatment::Routed, "routed", "hands out cgpu's functions in place of the driver's"),
    (Treatment::Counted, "counted", "goes to the driver, and is counted"),
    (Treatment::Guarded, "guarded", "goes to the library once the program has initialised it"),
    (Treatment::Passed, "passed", "goes to the driver without passing the shim"),
];

/// One row of either table.
struct Entry {
    symbol: &'static str,
    role: Role,
    treatment: Treatment,
    simulated: bool,
    reason: &'static str,
}

macro_rules! entries {
    ($table:ident) => {
        $table
            .iter()
            .map(|row| Entry {
                symbol: row.symbol,
                role: row.role,
                treatment: row.treatment,
                simulated: row.simulated,
                reason: row.reason,
            })
            .collect::<Vec<_>>()
    };
}

/// Splits a symbol into its stem, and its version and flavour.
fn stem(symbol: &str) -> (&str, &str) {
    let bare = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol);
    let bare = match bare.rsplit_once("_v") {
        Some((stem, version)) if version.chars().all(|digit| digit.is_ascii_digit()) => stem,
        _ => bare,
    };
    symbol.split_at(bare.len())
}

/// Lists symbols: of those with one stem, only the first in full, the others by their suffix.
fn listed(symbols: &[&str]) -> String {
    let mut text = String::new();
    let mut last = "";
    for symbol in symbols {
        let (stem, suffix) = stem(symbol);
        if text.is_empty() {
            write!(text, "`{symbol}`").unwrap();
        } else if stem == last {
            write!(text, " `{suffix}`").unwrap();
        } else {
            write!(text, ", `{symbol}`").unwrap();
        }
        last = stem;
    }
    text
}

/// Writes the number of rows by role and treatment.
fn counts(out: &mut String, entries: &[Entry]) {
    write!(out, "| |").unwrap();
    for (_, name, _) in TREATMENTS {
        write!(out, " {name} |").unwrap();
    }
    writeln!(out, " all | simulated |\n|---|{}", "--:|".repeat(TREATMENTS.len() + 2)).unwrap();
    let mut line = |name: &str, chosen: &dyn Fn(&Entry) -> bool| {
        let chosen: Vec<_> = entries.iter().filter(|entry| chosen(entry)).collect();
        if chosen.is_empty() {
            return;
        }
        write!(out, "| {name} |").unwrap();
        for (treatment, ..) in TREATMENTS {
            let count = chosen.iter().filter(|entry| entry.treatment == treatment).count();
            let text = if count == 0 { String::new() } else { count.to_string() };
            write!(out, " {text} |").unwrap();
        }
        let simulated = chosen.iter().filter(|entry| entry.simulated).count();
        writeln!(out, " {} | {simulated} |", chosen.len()).unwrap();
    };
    for (role, name) in ROLES {
        line(name, &|entry| entry.role == role);
    }
    line("**all**", &|_| true);
}

/// Writes one table per role; a line has the symbols with the same treatment, reason and
/// simulation.
fn roles(out: &mut String, entries: &[Entry]) {
    for (role, name) in ROLES {
        let of_role: Vec<_> = entries.iter().filter(|entry| entry.role == role).collect();
        if of_role.is_empty() {
            continue;
        }
        writeln!(out, "\n### {name} ({})\n", of_role.len()).unwrap();
        writeln!(out, "| treatment | why | simulated | functions |\n|---|---|---|---|").unwrap();
        for (treatment, treated, _) in TREATMENTS {
            let treated_so: Vec<_> =
                of_role.iter().filter(|entry| entry.treatment == treatment).collect();
            for group in groups(&treated_so) {
                let (first, symbols) =
                    (group[0], group.iter().map(|entry| entry.symbol).collect::<Vec<_>>());
                let simulated = if first.simulated { "yes" } else { "no" };
                writeln!(
                    out,
                    "| {treated} | {} | {simulated} | {} |",
                    first.reason,
                    listed(&symbols)
                )
                .unwrap();
            }
        }
    }
}

/// Groups entries by reason and simulation, in order of the first of each in the table.
fn groups<'a>(entries: &[&&'a Entry]) -> Vec<Vec<&'a Entry>> {
    let mut groups: Vec<Vec<&Entry>> = Vec::new();
    for &&entry in entries {
        let same = |group: &&mut Vec<&Entry>| {
            (group[0].reason, group[0].simulated) == (entry.reason, entry.simulated)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(entry),
            None => groups.push(vec![entry]),
        }
    }
    groups
}

fn document() -> String {
    let mut out = String::from(
        "# What is intercepted

Every symbol of the CUDA driver and of NVML from CUDA 11.7 to 13.5: what it does to memory or
compute, how cgpu treats it, and why. Generated from the tables in `abi/src`; a test fails when this
page and the tables differ.

",
    );
    for (_, name, meaning) in TREATMENTS {
        writeln!(out, "- **{name}**: {meaning}.").unwrap();
    }
    out.push_str(
        "
*Simulated* says whether the simulated GPU implements a function; its other exports return
NOT_SUPPORTED. A suffix alone stands for the name before it with that suffix: `cuMemAlloc` `_v2` are
two functions.
",
    );
    for (title, entries) in [("CUDA driver", entries!(DRIVER)), ("NVML", entries!(NVML))] {
        writeln!(out, "\n## {title}\n").unwrap();
        counts(&mut out, &entries);
        roles(&mut out, &entries);
    }
    out
}

#[test]
fn support_page_is_generated_from_the_tables() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/support.md");
    let document = document();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&page, &document).expect("docs is writable");
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    let differing = document.lines().zip(found.lines()).find(|(made, found)| made != found);
    assert!(
        document == found,
        "BLESS=1 cargo test -p cgpu-abi --test support writes the page; {differing:#?}"
    );
}

#[test]
fn every_role_and_treatment_is_on_the_page() {
    for entry in entries!(DRIVER).iter().chain(&entries!(NVML)) {
        assert!(ROLES.iter().any(|(role, _)| *role == entry.role), "{}", entry.symbol);
        assert!(
            TREATMENTS.iter().any(|(treatment, ..)| *treatment == entry.treatment),
            "{}",
            entry.symbol
        );
    }
}

#[test]
fn suffix_is_a_version_a_flavour_or_both() {
    assert_eq!(stem("cuMemAlloc"), ("cuMemAlloc", ""));
    assert_eq!(stem("cuMemcpyHtoD_v2_ptds"), ("cuMemcpyHtoD", "_v2_ptds"));
    assert_eq!(
        stem("nvmlVgpuInstanceGetLicenseInfo_v2"),
        ("nvmlVgpuInstanceGetLicenseInfo", "_v2")
    );
    assert_eq!(listed(&["cuMemFree", "cuMemFree_v2", "cuInit"]), "`cuMemFree` `_v2`, `cuInit`");
}
