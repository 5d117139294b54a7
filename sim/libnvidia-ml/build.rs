//! Links the library as the real one is linked: its own name, calls between its functions bound inside it, and only the old kind
//! of hash table, so that whoever walks symbol tables has to read both kinds.

// -z nodelete: a thread of ours runs until the process ends, whatever the program closes.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-soname,libnvidia-ml.so.1", "-Bsymbolic", "-z,nodelete", "--hash-style=sysv"]
    {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
