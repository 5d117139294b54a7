//! The rows against the data files, and against the rules that hold over all of them.
//!
//! That every symbol has its row is the build's business (`src/completeness.rs`).

use std::collections::{BTreeMap, BTreeSet};

use cgpu_abi::driver::{DefaultStream, proc_address};
use cgpu_abi::{DRIVER, Flavour, Kind, NVML, Role, Treatment, driver_index, nvml_index};

const DRIVER_SYMBOLS: &str = include_str!("../data/driver-symbols.tsv");
const NVML_SYMBOLS: &str = include_str!("../data/nvml-symbols.tsv");
const PROC_ADDRESS: &str = include_str!("../data/proc-address.tsv");

/// The fields of each line after the heading.
fn lines(data: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    data.lines().skip(1).map(|line| line.split('\t').collect())
}

/// `12.4` as 1204, `-` as 0.
fn header(text: &str) -> u32 {
    match text.split_once('.') {
        Some((major, minor)) => major.parse::<u32>().unwrap() * 100 + minor.parse::<u32>().unwrap(),
        None => 0,
    }
}

fn first_headers(data: &'static str) -> BTreeMap<&'static str, u32> {
    lines(data).map(|fields| (fields[0], header(fields[1]))).collect()
}

#[test]
fn since_is_the_first_header_of_the_data() {
    let tabled: BTreeMap<_, _> = DRIVER.iter().map(|row| (row.symbol, row.since)).collect();
    assert_eq!(tabled, first_headers(DRIVER_SYMBOLS));
    let tabled: BTreeMap<_, _> = NVML.iter().map(|row| (row.symbol, row.since)).collect();
    assert_eq!(tabled, first_headers(NVML_SYMBOLS));
}

#[test]
fn name_flavour_and_version_are_those_of_proc_address() {
    let measured: BTreeSet<(&str, &str, u32, &str)> = lines(PROC_ADDRESS)
        .map(|fields| (fields[0], fields[1].trim_start_matches('_'), fields[2].parse().unwrap(), fields[3]))
        .collect();
    let tabled: BTreeSet<_> = DRIVER
        .iter()
        .filter_map(|row| {
            let flavour = match row.flavour {
                Flavour::Legacy => "legacy",
                Flavour::PerThreadStream => "ptsz",
                Flavour::PerThreadDefault => "ptds",
                Flavour::None => return None,
            };
            Some((row.name, flavour, row.version, row.symbol))
        })
        .collect();
    assert_eq!(tabled, measured);
    for row in DRIVER {
        assert_eq!(row.flavour == Flavour::None, row.version == 0, "{row:?}");
    }
}

#[test]
fn positions_are_those_of_the_rows() {
    assert_eq!(DRIVER[driver_index::cuMemAlloc_v2].symbol, "cuMemAlloc_v2");
    assert_eq!(DRIVER[driver_index::cudbgUseExternalDebugger].symbol, "cudbgUseExternalDebugger");
    assert_eq!(NVML[nvml_index::nvmlDeviceGetMemoryInfo_v2].symbol, "nvmlDeviceGetMemoryInfo_v2");
}

/// What both tables' rows have in common.
struct Common {
    symbol: &'static str,
    kind: Kind,
    role: Role,
    treatment: Treatment,
    played: bool,
    reason: &'static str,
}

fn rows() -> Vec<Common> {
    macro_rules! common {
        ($table:ident) => {
            $table.iter().map(|row| Common {
                symbol: row.symbol,
                kind: row.kind,
                role: row.role,
                treatment: row.treatment,
                played: row.played,
                reason: row.reason,
            })
        };
    }
    common!(DRIVER).chain(common!(NVML)).collect()
}

#[test]
fn a_hook_does_something_and_nothing_else_does() {
    for row in rows() {
        assert_eq!(row.kind == Kind::Hook, row.treatment != Treatment::Passed, "{}", row.symbol);
    }
}

#[test]
fn nothing_that_allocates_passes_uncounted() {
    for row in rows().iter().filter(|row| row.role == Role::Allocates) {
        let seen = [Treatment::Charged, Treatment::Refused, Treatment::Counted];
        assert!(seen.contains(&row.treatment), "{}", row.symbol);
    }
}

#[test]
fn what_is_played_has_its_arguments() {
    for row in rows() {
        assert!(!row.played || row.kind != Kind::Pass, "{}", row.symbol);
    }
}

#[test]
fn every_reason_is_a_clause_of_its_own() {
    for row in rows() {
        assert!(row.reason.len() >= 10 && !row.reason.ends_with('.'), "{}", row.symbol);
        let refused = row.treatment == Treatment::Refused;
        assert_eq!(refused, row.reason.contains(": refused"), "{}: {}", row.symbol, row.reason);
    }
}

fn symbol(name: &str, version: u32, stream: DefaultStream) -> Option<&'static str> {
    proc_address(name, version, stream).map(|row| row.symbol)
}

#[test]
fn proc_address_finds_what_the_data_say_at_the_very_version() {
    for fields in lines(PROC_ADDRESS) {
        let stream = if fields[1] == "legacy" { DefaultStream::Legacy } else { DefaultStream::PerThread };
        assert_eq!(symbol(fields[0], fields[2].parse().unwrap(), stream), Some(fields[3]), "{fields:?}");
    }
}

#[test]
fn proc_address_takes_the_greatest_version_not_above() {
    use DefaultStream::{Legacy, PerThread};
    for (name, version, stream, expected) in [
        ("cuMemAlloc", 1999, Legacy, None),
        ("cuMemAlloc", 2000, Legacy, Some("cuMemAlloc")),
        ("cuMemAlloc", 3019, Legacy, Some("cuMemAlloc")),
        ("cuMemAlloc", 3020, Legacy, Some("cuMemAlloc_v2")),
        ("cuMemAlloc", 13050, PerThread, Some("cuMemAlloc_v2")),
        ("cuMemAlloc_v2", 13050, Legacy, None),
        ("cuCtxCreate", 11030, Legacy, Some("cuCtxCreate_v2")),
        ("cuCtxCreate", 12040, Legacy, Some("cuCtxCreate_v3")),
        ("cuCtxCreate", 99999, Legacy, Some("cuCtxCreate_v4")),
        // A function for the thread's own stream only where the caller asks for it and the version has it.
        ("cuMemcpyHtoD", 6050, PerThread, Some("cuMemcpyHtoD_v2")),
        ("cuMemcpyHtoD", 7000, PerThread, Some("cuMemcpyHtoD_v2_ptds")),
        ("cuMemcpyHtoD", 7000, Legacy, Some("cuMemcpyHtoD_v2")),
        ("cuLaunchKernel", 12000, PerThread, Some("cuLaunchKernel_ptsz")),
        ("cuNoSuchFunction", 13050, Legacy, None),
        ("", 0, Legacy, None),
    ] {
        assert_eq!(symbol(name, version, stream), expected, "{name} at {version}, {stream:?}");
    }
}
