//! Names, versions and hash tables of the exported symbols, compared with the real libraries'.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::setup;

fn tool(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .output()
        .expect("binutils come with the compiler");
    assert!(output.status.success(), "{program} {}", file.display());
    String::from_utf8(output.stdout).expect("the names of symbols are text")
}

/// Returns the address of each exported symbol, by name.
fn exports(file: &Path) -> BTreeMap<String, String> {
    let text = tool("nm", &["-D", "--defined-only"], file);
    let symbols = text.lines().map(|line| {
        let mut words = line.split(' ');
        let (address, _kind, name) =
            (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        (name.to_owned(), address.to_owned())
    });
    symbols.collect()
}

/// Returns the names in a data table.
fn table(name: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(setup::root().join("abi/data").join(name)).unwrap();
    text.lines().skip(1).map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

fn check(library: &str, names: &str, hashes: &[&str]) {
    for folder in ["sim", "null"] {
        let file = setup::libraries().join(folder).join(library);
        let exports = exports(&file);
        // Every symbol of the table is exported, and none of Rust's. A version would be part of the
        // name.
        assert_eq!(
            exports.keys().cloned().collect::<BTreeSet<_>>(),
            table(names),
            "{folder}/{library}"
        );
        // The shim tells functions apart by their addresses.
        let addresses: BTreeSet<_> = exports.values().collect();
        assert_eq!(
            addresses.len(),
            exports.len(),
            "{folder}/{library}: two names have one address"
        );
        let dynamic = tool("readelf", &["--dynamic", "--wide"], &file);
        assert!(dynamic.contains(&format!("[{library}]")), "{folder}/{library}: SONAME");
        assert!(
            dynamic.contains("SYMBOLIC"),
            "{folder}/{library}: calls inside the library can be interposed"
        );
        let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
        let foreign: Vec<&str> = needed
            .filter(|line| !line.contains("[libc.so.6]") && !line.contains("[ld-linux"))
            .collect();
        assert!(folder == "null" || foreign.is_empty(), "{folder}/{library}: {foreign:?}");
        for (hash, tag) in [("sysv", "(HASH)"), ("gnu", "(GNU_HASH)")] {
            assert_eq!(dynamic.contains(tag), hashes.contains(&hash), "{folder}/{library}: {tag}");
        }
    }
}

#[test]
fn libcuda_exports_match_the_real_library() {
    check("libcuda.so.1", "driver-symbols.tsv", &["sysv", "gnu"]);
}

#[test]
fn nvml_exports_match_the_real_library() {
    check("libnvidia-ml.so.1", "nvml-symbols.tsv", &["sysv"]);
}
