//! Checks the typed rows, structs and constants against an installed header, by a C compiler.
//!
//! Needs cc and cuda.h (nvml.h beside it is optional) in `$CUDA_HEADER_DIR` or
//! /usr/local/cuda/include. Any version will do: functions that it does not declare are skipped,
//! unless the table says that the version has them.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_abi::nvml_types::{self, nvmlReturn_t};
use cgpu_abi::types::{self, CUresult};

/// Symbol, first header, and the prototype of the table, as Rust types.
struct Prototype {
    symbol: &'static str,
    since: u32,
    arguments: Vec<&'static str>,
    answer: &'static str,
}

macro_rules! driver_prototypes {
    ($($kind:ident $symbol:ident
        { $name:literal, $flavour:ident, $version:literal, $since:literal }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($arg:ident: $type:ty),*) $(-> $ret:ty)?)?;)*) => {
        vec![$($(driver_prototypes!(
            @one $treatment $simulated $symbol $since ($($type),*) $(-> $ret)?
        ),)?)*]
    };
    // Refused and not simulated: the row has no arguments.
    (@one Refused stub $symbol:ident $since:literal () ) => { None };
    (@one $treatment:ident $simulated:ident $symbol:ident $since:literal ($($type:ty),*)) => {
        prototype!($symbol $since ($($type),*) CUresult)
    };
}

macro_rules! nvml_prototypes {
    ($($kind:ident $symbol:ident { $since:literal } $role:ident
        $treatment:ident $simulated:ident $reason:literal
        $(($($arg:ident: $type:ty),*) $(-> $ret:ty)?)?;)*) => {
        vec![$($(nvml_prototypes!(@one $symbol $since ($($type),*) $(-> $ret)?),)?)*]
    };
    (@one $symbol:ident $since:literal ($($type:ty),*)) => {
        prototype!($symbol $since ($($type),*) nvmlReturn_t)
    };
    (@one $symbol:ident $since:literal ($($type:ty),*) -> $ret:ty) => {
        prototype!($symbol $since ($($type),*) $ret)
    };
}

macro_rules! prototype {
    ($symbol:ident $since:literal ($($type:ty),*) $ret:ty) => {
        Some(Prototype {
            symbol: stringify!($symbol),
            since: $since,
            arguments: vec![$(stringify!($type)),*],
            answer: stringify!($ret),
        })
    };
}

/// Translates a Rust type to C.
fn in_c(rust: &str) -> String {
    if let Some(pointee) = rust.strip_prefix('*') {
        let (mutability, pointee) =
            pointee.trim().split_once(' ').expect("a pointer says mut or const");
        return format!("{} {}*", in_c(pointee), if mutability == "const" { "const " } else { "" });
    }
    match rust {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_ulonglong" => "unsigned long long",
        "usize" => "size_t",
        "u8" => "unsigned char",
        "u16" => "unsigned short",
        "f32" => "float",
        other => other,
    }
    .to_owned()
}

/// The head of a C file, and the table's facts to check in it.
struct Header {
    preamble: String,
    prototypes: Vec<Prototype>,
    layouts: &'static [(&'static str, usize, usize)],
    constants: Vec<(&'static str, u32)>,
}

fn named(results: &[CUresult]) -> Vec<(&'static str, u32)> {
    let text = |name: Option<&'static CStr>| {
        name.expect("ALL holds named results").to_str().expect("ASCII")
    };
    results.iter().map(|result| (text(result.name()), result.0)).collect()
}

fn driver_header() -> Header {
    let prototypes: Vec<Option<Prototype>> = cgpu_abi::driver_table!(driver_prototypes);
    let constants = types::CONSTANTS.iter().copied().chain(named(CUresult::ALL));
    Header {
        // With this macro the header declares every symbol under its own name.
        preamble: "#define __CUDA_API_VERSION_INTERNAL\n#include <stddef.h>\n#include <cuda.h>\n"
            .to_owned(),
        prototypes: prototypes.into_iter().flatten().collect(),
        layouts: types::LAYOUTS,
        constants: constants.collect(),
    }
}

fn nvml_header() -> Header {
    let prototypes: Vec<Option<Prototype>> = cgpu_abi::nvml_table!(nvml_prototypes);
    let results = nvmlReturn_t::ALL.iter().map(|result| {
        (result.name().expect("ALL holds named results").to_str().expect("ASCII"), result.0)
    });
    Header {
        preamble: "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <stddef.h>\n#include <nvml.h>\n"
            .to_owned(),
        prototypes: prototypes.into_iter().flatten().collect(),
        layouts: nvml_types::LAYOUTS,
        constants: nvml_types::CONSTANTS.iter().copied().chain(results).collect(),
    }
}

/// Returns a command for the C compiler, with a time limit.
fn cc(include: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["300", "cc", "-std=c11", "-I"]).arg(include);
    command
}

/// Returns every name that the header declares or defines, and its version.
fn names(include: &Path, source: &Path) -> (HashSet<String>, u32) {
    let text = |flags: &[&str]| {
        let out = cc(include).args(flags).arg(source).output().expect("cc starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let words = |text: &str| -> HashSet<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    let macros = text(&["-E", "-dM"]);
    let version = macros
        .lines()
        .find_map(|line| line.strip_prefix("#define CUDA_VERSION ")?.trim().parse().ok())
        .unwrap_or_default();
    let mut found = words(&text(&["-E", "-P"]));
    found.extend(
        macros.lines().filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned),
    );
    (found, version)
}

/// Compiles the checks of one header; returns their number.
fn check(include: &Path, name: &str, header: &Header) -> usize {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    fs::write(&source, &header.preamble).expect("the target folder is writable");
    let (declared, version) = names(include, &source);
    let mut code = header.preamble.clone();
    let mut checks = 0;
    for Prototype { symbol, since, arguments, answer } in &header.prototypes {
        // These two exist only as results of macros, with the arguments of the plain ones.
        let hidden = matches!(*symbol, "cuGetProcAddress_ptsz" | "cuGetProcAddress_v2_ptsz");
        if !declared.contains(*symbol) {
            assert!(
                *since == 0 || since * 10 > version || hidden,
                "{symbol} should be in a header of {version}"
            );
            continue;
        }
        let arguments: Vec<String> = arguments.iter().map(|argument| in_c(argument)).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        writeln!(code, "{} (*const check_{symbol})({arguments}) = {symbol};", in_c(answer))
            .expect("memory");
        checks += 1;
    }
    for (name, size, align) in header.layouts.iter().filter(|(name, ..)| declared.contains(*name)) {
        writeln!(code, "_Static_assert(sizeof({name}) == {size}, \"{name}\");").expect("memory");
        writeln!(code, "_Static_assert(_Alignof({name}) == {align}, \"{name}\");").expect("memory");
        checks += 1;
    }
    // CUDA 12 reused these two names; before, they meant the attributes that are now `_V1`.
    let renamed = |name: &str| {
        version < 12000
            && matches!(
                name,
                "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS"
                    | "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR"
            )
    };
    for (name, value) in
        header.constants.iter().filter(|(name, _)| declared.contains(*name) && !renamed(name))
    {
        writeln!(code, "_Static_assert((unsigned){name} == {value}u, \"{name}\");")
            .expect("memory");
        checks += 1;
    }
    fs::write(&source, code).expect("the target folder is writable");
    let out = cc(include)
        .args(["-fsyntax-only", "-Werror", "-Wno-deprecated-declarations"])
        .arg(&source)
        .output()
        .expect("cc starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    checks
}

/// Returns the folder of the installed header, if any.
fn include() -> Option<PathBuf> {
    let chosen = std::env::var_os("CUDA_HEADER_DIR").map(PathBuf::from);
    let include = chosen.unwrap_or_else(|| PathBuf::from("/usr/local/cuda/include"));
    include.join("cuda.h").exists().then_some(include)
}

/// Reports a skipped test on stdout and in the list of the test run.
fn skip(reason: &str) {
    println!("skipped: {reason}");
    if let Some(list) = std::env::var_os("CGPU_SKIPPED") {
        let mut list = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(list)
            .expect("the list is writable");
        writeln!(list, "header: {reason}").expect("the list is writable");
    }
}

#[test]
fn typed_rows_agree_with_the_installed_header() {
    let Some(include) = include() else {
        return skip("no cuda.h in $CUDA_HEADER_DIR or /usr/local/cuda/include");
    };
    let checks = check(&include, "driver", &driver_header());
    println!("cuda.h: {checks} prototypes, structs and constants agree");
    assert!(checks > 300, "a cuda.h of 11.7 or later declares more than {checks} of them");
    if include.join("nvml.h").exists() {
        let checks = check(&include, "nvml", &nvml_header());
        println!("nvml.h: {checks} prototypes, structs and constants agree");
        assert!(checks > 100, "an nvml.h of 12.0 or later declares more than {checks} of them");
    }
}
