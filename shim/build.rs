//! How libcgpu.so is linked.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");

    // Our own names mean our own functions, whatever else defines them: what is routed is what is
    // exported here.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcgpu.so");
    // Threads run our destructor when they end, even if the library has been closed meanwhile.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");

    // A preload that cannot be loaded is passed over by the loader, and the limit with it. Not
    // every container has libgcc_s, which Rust's std asks for to unwind; what it needs of it is in
    // libgcc_eh.a, too. The linker takes the first libgcc_s.so on its path: this one, a linker
    // script that names the static library.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={}", out.display());
}
