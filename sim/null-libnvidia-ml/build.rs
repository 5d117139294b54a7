//! Links the library as the real one is linked: with its soname, with calls between its functions
//! bound inside it, and with the old kind of hash table only, so that code that reads symbol tables
//! is tested with both kinds.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-soname,libnvidia-ml.so.1", "-Bsymbolic", "--hash-style=sysv"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
