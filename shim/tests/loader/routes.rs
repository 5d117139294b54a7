//! Functions that `cuGetProcAddress` returns.

use std::path::{Path, PathBuf};

use cgpu_e2e::skip;

use crate::harness::{Harness, Run, hooked};

/// One line of `lookups`.
struct LookUp {
    requested: String,
    first: String,
    second: String,
    status: String,
    recorded: String,
}

fn look(run: &Run, file: &Path) -> Vec<LookUp> {
    let lines = run.lines("lookups", &[&file.display().to_string()]);
    let parsed = lines.iter().map(|line| {
        let fields: Vec<_> = line.split('|').map(str::to_owned).collect();
        let [name, version, flags, first, answer, second, status, recorded] =
            fields.try_into().expect("eight fields");
        assert_eq!(answer, "0", "{line}");
        LookUp { requested: format!("{name} {version} {flags}"), first, second, status, recorded }
    });
    parsed.collect()
}

/// Runs every recorded sequence of look-ups, without and with the shim. Each pointer for a hooked
/// symbol is ours, of the same version and flavour; all other pointers and results are the
/// driver's. `check` gets the request, the result, and the recorded symbol.
fn walk(bare: &Run, shimmed: &Run, check: impl Fn(&str, &str, &str)) {
    let hooked = hooked();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/e2e/data/cudart-lookups");
    let mut walks = 0;
    for entry in std::fs::read_dir(folder).expect("the recorded walks") {
        let file = entry.expect("a recorded walk").path();
        let (bare, shimmed) = (look(bare, &file), look(shimmed, &file));
        assert_eq!(bare.len(), shimmed.len());
        let mut ours = 0;
        for (without, with) in bare.iter().zip(&shimmed) {
            let expected = |found: &str| match found.split_once(':') {
                Some(("libcuda.so.1", symbol)) if hooked.contains(symbol) => {
                    format!("libcgpu.so:{symbol}")
                }
                _ => found.to_owned(),
            };
            assert_eq!(
                with.first,
                expected(&without.first),
                "{}: {}",
                file.display(),
                with.requested
            );
            assert_eq!(
                with.second,
                expected(&without.second),
                "{}: {}",
                file.display(),
                with.requested
            );
            assert_eq!(with.status, without.status, "{}: {}", file.display(), with.requested);
            check(&with.requested, &with.second, &with.recorded);
            ours += usize::from(with.second.starts_with("libcgpu.so:"));
        }
        assert!(
            shimmed.len() > 300 && ours > 25,
            "{}: {ours} of {}",
            file.display(),
            shimmed.len()
        );
        walks += 1;
    }
    assert_eq!(walks, 6);
}

/// The CUDA runtime's own look-ups at its start, in six versions.
#[test]
fn runtime_lookups_return_hooks_of_the_right_version_and_flavour() {
    let harness = Harness::get();
    walk(&harness.bare(), &harness.shimmed(), |requested, given, recorded| {
        // They were recorded with the newest driver, which the null driver implements.
        assert!(
            recorded == "NULL" || given.ends_with(&format!(":{recorded}")),
            "{requested} -> {given}"
        );
    });
}

/// The same on a real driver, which needs no GPU for it.
#[test]
fn real_driver_is_routed_like_the_simulated_one() {
    let Some(folder) = std::env::var_os("CGPU_REAL_DRIVER").map(PathBuf::from) else {
        return skip(
            "routes",
            "driver",
            "CGPU_REAL_DRIVER names no folder with a real libcuda.so.1",
        );
    };
    let harness = Harness::get();
    walk(&harness.bare().library(folder.clone()), &harness.shimmed().library(folder), |_, _, _| {});
}

/// A function that a driver returns without exporting it is decided by its name: refused if it
/// takes memory. If one address has two exported names, the requested name decides. Absent
/// functions stay absent.
#[test]
fn unexported_pointer_is_routed_by_its_name() {
    let harness = Harness::get();
    let lines = harness.shimmed().library(harness.file("odd")).lines("oddities", &[]);
    let expected = [
        "v2 cuMemAlloc: 0 libcgpu.so:cuMemAlloc_v2 0",
        "v2 cuMemAlloc without a status: 0 libcgpu.so:cuMemAlloc_v2",
        "v1 cuMemAlloc: 0 libcgpu.so:cuMemAlloc_v2",
        "v2 cuMemFree: 0 libcgpu.so:cuMemFree_v2 0",
        "v2 cuMemFree without a status: 0 libcgpu.so:cuMemFree_v2",
        "v1 cuMemFree: 0 libcgpu.so:cuMemFree_v2",
        "v2 cuStreamCreate: 0 libcuda.so.1:cuStreamCreate 0",
        "v2 cuStreamCreate without a status: 0 libcuda.so.1:cuStreamCreate",
        "v1 cuStreamCreate: 0 libcuda.so.1:cuStreamCreate",
        "v2 cuMemAllocPitch: 0 null 1",
        "v2 cuMemAllocPitch without a status: 0 null",
        "v1 cuMemAllocPitch: 500 null",
        "v2 cuStreamQuery: 0 libcuda.so.1:? 0",
        "v2 cuStreamQuery without a status: 0 libcuda.so.1:?",
        "v1 cuStreamQuery: 0 libcuda.so.1:?",
        "v2 cuBrandNew: 0 libcuda.so.1:? 0",
        "v2 cuBrandNew without a status: 0 libcuda.so.1:?",
        "v1 cuBrandNew: 0 libcuda.so.1:?",
        "v2 cuMemAllocBrandNew: 0 null 1",
        "v2 cuMemAllocBrandNew without a status: 0 null",
        "v1 cuMemAllocBrandNew: 500 null",
        "v2 cuAbsent: 0 null 1",
        "v2 cuAbsent without a status: 0 null",
        "v1 cuAbsent: 0 null",
        "v2 : 0 null 1",
        "v2  without a status: 0 null",
        "v1 : 0 null",
        "absent by dlsym: null",
    ];
    assert_eq!(lines, expected);
}

/// Drivers that looked themselves up while they were queried for a table once caused endless
/// recursion.
#[test]
fn driver_that_looks_itself_up_gets_its_own_functions() {
    let harness = Harness::get();
    let with = |run: Run| run.library(harness.file("selfish")).lines("tables", &[]);
    let (bare, shimmed) = (with(harness.bare()), with(harness.shimmed()));
    // The table itself is the driver's.
    let expected: Vec<_> =
        bare.iter().map(|line| line.replace("libcuda.so.1:", "libcgpu.so:")).collect();
    assert_eq!(shimmed, expected);
    let tables = bare
        .iter()
        .filter(|line| line.ends_with("0, 16 bytes, libcuda.so.1:cuGetExportTable, 4711"));
    assert_eq!(tables.count(), 3);
}
