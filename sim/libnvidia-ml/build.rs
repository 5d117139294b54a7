//! Links the library as the real one is linked: with its soname, with calls between its functions
//! bound inside it, and with the old kind of hash table only, so that code that reads symbol tables
//! is tested with both kinds.

#[path = "../static_unwinder.rs"]
mod static_unwinder;

// -z nodelete: a thread of the library runs until the process ends, even if the program closes the
// library.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../static_unwinder.rs");
    static_unwinder::link();
    for argument in ["-soname,libnvidia-ml.so.1", "-Bsymbolic", "-z,nodelete", "--hash-style=sysv"]
    {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
