//! `libcgpu.so` as the loader sees it. The loader skips a preload that it cannot load, and then
//! there would be no limit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cgpu_e2e::{Dist, Elf, Fixture, MIB, Outcome, skip};

fn golden(name: &str) -> BTreeSet<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shim/golden").join(name);
    let text =
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn same(what: &str, built: &BTreeSet<String>, golden: &BTreeSet<String>) {
    let more: Vec<_> = built.difference(golden).collect();
    let fewer: Vec<_> = golden.difference(built).collect();
    assert!(more.is_empty() && fewer.is_empty(), "{what}: new {more:?}, gone {fewer:?}");
}

#[test]
fn exports_dependencies_and_versions_match_the_golden_files() {
    let Some(shim) = Elf::read(&Dist::find().release().file("libcgpu.so")) else {
        return skip("library", "readelf", "no readelf: install binutils");
    };
    same("exports", &shim.exports(), &golden("exports.txt"));
    same("needed", &shim.needed(), &golden("needed.txt"));
    // Fewer are fine: which versions a build needs depends on the build machine, too.
    let newer: Vec<_> = shim.versions().difference(&golden("versions.txt")).cloned().collect();
    assert!(newer.is_empty(), "versions of glibc that the list does not have: {newer:?}");
}

/// The step `portable` of `cargo xtask test --full`: no glibc newer than 2.17, and the limit holds.
#[test]
fn portable_build_needs_only_old_glibc() {
    let dist = Dist::find();
    let file = dist.folder().join("portable/libcgpu.so");
    if !file.exists() {
        return skip(
            "library",
            "zig",
            "no portable build: the step portable of `cargo xtask test --full` makes one",
        );
    }
    let Some(shim) = Elf::read(&file) else {
        return skip("library", "readelf", "no readelf: install binutils");
    };
    same("exports", &shim.exports(), &golden("exports.txt"));
    same("needed", &shim.needed(), &golden("portable-needed.txt"));
    let newer: Vec<_> =
        shim.versions().difference(&golden("portable-versions.txt")).cloned().collect();
    assert!(newer.is_empty(), "versions of glibc that the list does not have: {newer:?}");
    // A function that the old glibc lacks is linked without a version, and missing only when it is
    // called.
    assert_eq!(shim.unversioned(), BTreeSet::new());
    let fixture = Fixture::new("A10:23028");
    let mut command = fixture.program_in(&fixture.limited("a", 2048), "alloc_fill");
    command.arg("64M").env("LD_PRELOAD", &file);
    let outcome = Outcome::of(command).silent();
    assert_eq!((outcome.number("total"), outcome.number("error")), (2048 * MIB, 2));
}

/// It is linked statically, so that engines wait less for it and it runs on every system. It can
/// load no library, not even NVML.
#[test]
fn runtime_is_linked_statically() {
    let dist = Dist::find();
    let Some(runtime) = Elf::read(&dist.file("cgpu-runtime")) else {
        return skip("library", "readelf", "no readelf: install binutils");
    };
    assert_eq!((runtime.needed(), runtime.versions()), (BTreeSet::new(), BTreeSet::new()));
    let fixture = Fixture::new("A10:23028");
    let mut command = fixture.native(&dist.file("cgpu-runtime"));
    command.arg("--help");
    let help = Outcome::of(command);
    assert!(help.stdout.contains("--cgpu-config FILE"), "{help:?}");
}

#[test]
fn simulated_and_null_drivers_have_the_real_sonames() {
    let dist = Dist::find();
    for (file, name) in [
        ("sim/libcuda.so.1", "libcuda.so.1"),
        ("null/libcuda.so.1", "libcuda.so.1"),
        ("sim/libnvidia-ml.so.1", "libnvidia-ml.so.1"),
        ("null/libnvidia-ml.so.1", "libnvidia-ml.so.1"),
    ] {
        let Some(library) = Elf::read(&dist.file(file)) else {
            return skip("library", "readelf", "no readelf: install binutils");
        };
        assert_eq!(library.soname().as_deref(), Some(name), "{file}");
    }
}
