//! Compiles `deviceplugin.proto` without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=deviceplugin.proto");
    let files = protox::compile(["deviceplugin.proto"], ["."])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
