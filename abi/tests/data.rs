//! Checks of the rows against the data files, and against rules for all rows.
//!
//! The build checks that every symbol has a row (`src/completeness.rs`).

use std::collections::{BTreeMap, BTreeSet};

use cgpu_abi::driver::{DefaultStream, Lookup, look_up, proc_address};
use cgpu_abi::{DRIVER, Flavour, Kind, NVML, NvmlRow, Role, Treatment, driver_index, nvml_index};

const DRIVER_SYMBOLS: &str = include_str!("../data/driver-symbols.tsv");
const NVML_SYMBOLS: &str = include_str!("../data/nvml-symbols.tsv");
/// From the headers.
const PROC_ADDRESS: &str = include_str!("../data/proc-address.tsv");
/// What no header has: read from the drivers 535 and 550, which agree.
const PROC_ADDRESS_EXPORTS: &str = include_str!("../data/proc-address-exports.tsv");

/// Returns the fields of each line after the heading.
fn lines(data: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    data.lines().skip(1).map(|line| line.split('\t').collect())
}

/// Parses `12.4` to 1204, `-` to 0.
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
        .chain(lines(PROC_ADDRESS_EXPORTS))
        .map(|fields| {
            (fields[0], fields[1].trim_start_matches('_'), fields[2].parse().unwrap(), fields[3])
        })
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
fn driver_exports_the_symbols_of_its_version() {
    for fields in lines(DRIVER_SYMBOLS) {
        let row = DRIVER.iter().find(|row| row.symbol == fields[0]).unwrap();
        for (driver, exported) in [(12_020, fields[2]), (12_040, fields[3])] {
            assert_eq!(row.is_exported_by(driver), exported == "1", "{} by {driver}", row.symbol);
        }
    }
    for fields in lines(NVML_SYMBOLS) {
        let row = NVML.iter().find(|row| row.symbol == fields[0]).unwrap();
        for (driver, exported) in [(12_020, fields[2]), (12_040, fields[3])] {
            assert_eq!(row.is_exported_by(driver), exported == "1", "{} by {driver}", row.symbol);
        }
    }
    // The driver of the reference documents.
    assert!(!NVML[nvml_index::nvmlDeviceGetMemoryInfo_v2].is_exported_by(10_010));
    assert!(NVML[nvml_index::nvmlDeviceGetMemoryInfo].is_exported_by(10_010));
    assert!(!DRIVER[driver_index::cuGetProcAddress].is_exported_by(10_010));
    assert!(!DRIVER[driver_index::cuMemCreate].is_exported_by(10_010));
    assert!(DRIVER[driver_index::cuMemAlloc_v2].is_exported_by(10_010));
}

#[test]
fn look_up_distinguishes_unknown_names_from_too_new_ones() {
    use DefaultStream::{Legacy, PerThread};
    for (name, version, stream, driver, expected) in [
        ("cuMemAlloc", 2000, Legacy, 12040, Ok("cuMemAlloc")),
        ("cuMemAlloc", 12040, Legacy, 12040, Ok("cuMemAlloc_v2")),
        ("cuMemAlloc", 0, Legacy, 12040, Err(Lookup::VersionTooLow)),
        ("cuMemCreate", 9000, Legacy, 12040, Err(Lookup::VersionTooLow)),
        // A caller that is newer than the driver gets the newest function.
        ("cuCtxCreate", 12050, Legacy, 12020, Ok("cuCtxCreate_v3")),
        ("cuCtxCreate", 12050, Legacy, 13000, Ok("cuCtxCreate_v4")),
        ("cuGraphAddNode", 13040, Legacy, 12040, Ok("cuGraphAddNode_v2")),
        // Functions that are newer than the driver.
        ("cuMemGetDefaultMemPool", 13000, Legacy, 12040, Err(Lookup::NotFound)),
        ("cuMemGetDefaultMemPool", 13000, Legacy, 13000, Ok("cuMemGetDefaultMemPool")),
        ("cuGetProcAddress", 12000, Legacy, 10010, Err(Lookup::NotFound)),
        ("cuGetProcAddress", 11030, Legacy, 12040, Ok("cuGetProcAddress")),
        ("cuGetProcAddress", 12000, Legacy, 12040, Ok("cuGetProcAddress_v2")),
        // The thread's own stream.
        ("cuLaunchKernel", 7000, PerThread, 12040, Ok("cuLaunchKernel_ptsz")),
        ("cuLaunchKernel", 4000, PerThread, 12040, Err(Lookup::VersionTooLow)),
        ("cuMemAlloc", 12000, PerThread, 12040, Ok("cuMemAlloc_v2")),
        ("cuGLMapBufferObject", 3020, PerThread, 12040, Err(Lookup::VersionTooLow)),
        ("cuGLMapBufferObject", 7000, PerThread, 12040, Ok("cuGLMapBufferObject_v2_ptds")),
        ("cuProfilerStart", 4000, Legacy, 12040, Ok("cuProfilerStart")),
        // No names.
        ("cuMemAlloc_v2", 12000, Legacy, 12040, Err(Lookup::NotFound)),
        ("cudbgMain", 12000, Legacy, 12040, Err(Lookup::NotFound)),
        ("cuNothing", 12000, Legacy, 12040, Err(Lookup::NotFound)),
        ("", 0, Legacy, 12040, Err(Lookup::NotFound)),
    ] {
        let found = match look_up(name, version, stream, driver) {
            Lookup::Symbol(position) => Ok(DRIVER[position].symbol),
            none => Err(none),
        };
        assert_eq!(found, expected, "{name} at {version}, {stream:?}, by {driver}");
    }
}

#[test]
fn positions_are_those_of_the_rows() {
    assert_eq!(DRIVER[driver_index::cuMemAlloc_v2].symbol, "cuMemAlloc_v2");
    assert_eq!(DRIVER[driver_index::cudbgUseExternalDebugger].symbol, "cudbgUseExternalDebugger");
    assert_eq!(NVML[nvml_index::nvmlDeviceGetMemoryInfo_v2].symbol, "nvmlDeviceGetMemoryInfo_v2");
}

/// Common fields of both tables' rows.
struct Common {
    symbol: &'static str,
    kind: Kind,
    role: Role,
    treatment: Treatment,
    simulated: bool,
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
                simulated: row.simulated,
                reason: row.reason,
            })
        };
    }
    common!(DRIVER).chain(common!(NVML)).collect()
}

#[test]
fn only_hooks_have_a_treatment() {
    for row in rows() {
        assert_eq!(row.kind == Kind::Hook, row.treatment != Treatment::Passed, "{}", row.symbol);
    }
}

#[test]
fn allocating_function_never_passes_uncounted() {
    for row in rows().iter().filter(|row| row.role == Role::Allocates) {
        let seen = [Treatment::Charged, Treatment::Tracked, Treatment::Refused, Treatment::Counted];
        assert!(seen.contains(&row.treatment), "{}", row.symbol);
    }
}

/// Parts of the names of functions that report memory, processes, accounting or utilisation.
const TELLING: [&str; 14] = [
    "Mem",
    "Fb",
    "FB",
    "Framebuffer",
    "Process",
    "Pids",
    "Account",
    "Util",
    "Sessions",
    "Samples",
    "Metrics",
    "Stats",
    "Pstates",
    "ProfileInfo",
];

/// Accepted reasons for passing such a function. "The limit does not change it" is not enough.
const SHOWN_AS_IT_IS: [&str; 12] = [
    "the PCIe window for access by the host, not the GPU's memory",
    "no field up to 13.5 has a memory size or names a process",
    "utilisation of the whole GPU, which all containers share",
    "counters of the whole GPU, which all containers share",
    "the name of a process whose id the caller already knows",
    "the MIG instances that the GPU can have",
    "widths, clocks and errors of the memory chips, not the memory in use",
    "reads, switches or clears NVML's accounting; changes need root on the host",
    "changes or services the GPU, which needs root on the host",
    "virtual GPUs of virtual machines, which no container has",
    "reads about links between GPUs",
    "an instance of a partitioned GPU; the limit applies to it as to a GPU",
];

/// For the driver's table see [`allocating_function_never_passes_uncounted`].
#[test]
fn reporting_nvml_function_is_hooked_or_has_an_accepted_reason() {
    let tells = |symbol: &str| TELLING.iter().any(|word| symbol.contains(word));
    let mut unused: BTreeSet<&str> = SHOWN_AS_IT_IS.into();
    for row in NVML.iter().filter(|row| row.role == Role::Reports || tells(row.symbol)) {
        assert_eq!(
            row.kind == Kind::Hook,
            row.treatment == Treatment::Virtualised,
            "{}",
            row.symbol
        );
        let shown = SHOWN_AS_IT_IS.contains(&row.reason);
        assert!(row.kind == Kind::Hook || shown, "{}: {}", row.symbol, row.reason);
        unused.remove(row.reason);
    }
    assert!(unused.is_empty(), "{unused:?}");
    // No other function is hooked, except those that count NVML's uses or wait for the program's.
    let counts = |row: &&NvmlRow| matches!(row.treatment, Treatment::Tracked | Treatment::Guarded);
    for row in NVML.iter().filter(|row| row.kind == Kind::Hook && !counts(row)) {
        assert_eq!(row.role, Role::Reports, "{}", row.symbol);
    }
}

/// Rows of role [`Role::Launches`] that need not wait, because they compute nothing on the GPU.
const NO_COMPUTING: &[(&str, &str)] = &[
    ("cuGraphUpload", "memory of an executable graph, before any launch"),
    ("cuLaunchHostFunc", "runs on the host"),
];

#[test]
fn launch_is_gated() {
    for row in DRIVER.iter().filter(|row| row.role == Role::Launches) {
        let excused = NO_COMPUTING.iter().any(|(name, _)| *name == row.name);
        assert_eq!(row.treatment != Treatment::Gated, excused, "{}", row.symbol);
    }
    for (name, reason) in NO_COMPUTING {
        assert!(
            DRIVER.iter().any(|row| row.name == *name && row.role == Role::Launches),
            "{name}: {reason}"
        );
    }
}

/// So the test above covers launches of a new driver version.
#[test]
fn function_named_launch_has_the_role_launches() {
    for row in DRIVER
        .iter()
        .filter(|row| row.symbol.starts_with("cuLaunch") || row.symbol.starts_with("cuGraphLaunch"))
    {
        assert_eq!(row.role, Role::Launches, "{}", row.symbol);
    }
}

#[test]
fn copy_within_the_gpu_is_gated_or_has_a_reason() {
    for row in
        DRIVER.iter().filter(|row| row.role == Role::Copies && row.treatment != Treatment::Gated)
    {
        let excused =
            ["not gated", "managed ranges"].iter().any(|reason| row.reason.contains(reason));
        assert!(excused, "{}: {}", row.symbol, row.reason);
        let within = ["cuMemset", "cuMemcpyDtoD", "cuMemcpyAtoA", "cuMemcpyAtoD", "cuMemcpyDtoA"];
        let within = within.iter().any(|beginning| row.symbol.starts_with(beginning));
        assert!(!within || row.version < 3020, "{}", row.symbol);
    }
}

#[test]
fn freeing_function_is_hooked() {
    let unseen: Vec<&str> = rows()
        .iter()
        .filter(|row| row.role == Role::Frees && row.treatment == Treatment::Passed)
        .map(|row| row.symbol)
        .collect();
    // Only a trim gives back what is reserved for graphs.
    assert_eq!(unseen, ["cuGraphAddMemFreeNode", "cuGraphDestroy"]);
}

#[test]
fn versions_and_flavours_of_a_function_have_the_same_treatment() {
    let mut treatments: BTreeMap<&str, BTreeMap<Treatment, Vec<&str>>> = BTreeMap::new();
    // Copies with 32-bit addresses: no 64-bit driver returns memory that they could address.
    let narrow = |row: &&cgpu_abi::Row| row.role == Role::Copies && row.version < 3020;
    for row in DRIVER.iter().filter(|row| !row.name.is_empty() && !narrow(row)) {
        treatments.entry(row.name).or_default().entry(row.treatment).or_default().push(row.symbol);
    }
    let unlike: Vec<_> = treatments.iter().filter(|(_, ways)| ways.len() > 1).collect();
    assert!(unlike.is_empty(), "{unlike:?}");
}

#[test]
fn simulated_function_has_arguments() {
    for row in rows() {
        assert!(!row.simulated || row.kind != Kind::Pass, "{}", row.symbol);
    }
}

#[test]
fn every_reason_is_a_clause() {
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
fn proc_address_at_the_first_version_is_that_of_the_data() {
    for fields in lines(PROC_ADDRESS) {
        let stream =
            if fields[1] == "legacy" { DefaultStream::Legacy } else { DefaultStream::PerThread };
        assert_eq!(
            symbol(fields[0], fields[2].parse().unwrap(), stream),
            Some(fields[3]),
            "{fields:?}"
        );
    }
}

#[test]
fn proc_address_returns_the_newest_function_up_to_the_version() {
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
        // Functions for the thread's own stream only if requested, and then no others.
        ("cuMemcpyHtoD", 6050, PerThread, None),
        ("cuMemcpyHtoD", 7000, PerThread, Some("cuMemcpyHtoD_v2_ptds")),
        ("cuMemcpyHtoD", 7000, Legacy, Some("cuMemcpyHtoD_v2")),
        ("cuLaunchKernel", 12000, PerThread, Some("cuLaunchKernel_ptsz")),
        ("cuNoSuchFunction", 13050, Legacy, None),
        ("", 0, Legacy, None),
    ] {
        assert_eq!(symbol(name, version, stream), expected, "{name} at {version}, {stream:?}");
    }
}
