//! For the build scripts of the simulated libraries: links what Rust's std needs for unwinding
//! statically, as the shim does (`shim/build.rs`). Not every image has libgcc_s, and a real driver
//! needs libc alone.

use std::path::PathBuf;
use std::{env, fs};

pub(crate) fn link() {
    // The linker takes the first libgcc_s.so on its path: this one, a linker script that names the
    // static library.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={}", out.display());
}
