//! Links libcgpu.so.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");

    // References to our own names must mean our own functions, even if other libraries define them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcgpu.so");
    // Threads run our destructor when they end, even if the library has been closed by then.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");

    // The loader skips a preload that cannot be loaded, and the limit with it. Not every container
    // has libgcc_s, which Rust's std needs for unwinding; libgcc_eh.a has what it needs. The linker
    // takes the first libgcc_s.so on its path: this one, a linker script that names the static
    // library.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={}", out.display());
}
