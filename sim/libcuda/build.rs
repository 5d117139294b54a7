//! Links the library as the real driver is linked: with its soname, and with calls between its
//! functions bound inside it.

#[path = "../static_unwinder.rs"]
mod static_unwinder;

// -z nodelete: a thread of the library runs until the process ends, even if the program closes the
// library.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../static_unwinder.rs");
    static_unwinder::link();
    for argument in ["-soname,libcuda.so.1", "-Bsymbolic", "-z,nodelete", "--hash-style=both"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
