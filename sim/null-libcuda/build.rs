//! Links the library as the real driver is linked: with its soname, and with calls between its
//! functions bound inside it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-soname,libcuda.so.1", "-Bsymbolic", "--hash-style=both"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
