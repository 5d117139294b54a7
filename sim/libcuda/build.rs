//! Links the library as the real driver is linked: its own name, and calls between its functions bound inside it.

// -z nodelete: a thread of ours runs until the process ends, whatever the program closes.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-soname,libcuda.so.1", "-Bsymbolic", "-z,nodelete", "--hash-style=both"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
